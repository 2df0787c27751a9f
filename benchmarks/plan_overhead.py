"""Microseconds per iteration of a plan's operators, items and metrics, with env runners and learners that are idle."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import bench_common as bc

from runner.callbacks import Callbacks
from runner.cluster.actor_group import ActorGroup
from runner.cluster.actors import LocalActor
from runner.config.compose import compose_experiment
from runner.config.validation import build_experiment_config
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.env_runners.sample import Sample
from runner.experiment.trainer import Trainer
from runner.learners.gradients import GroupGradients
from runner.learners.update_results import UpdateResult
from runner.plans import PlanContext, RunMetrics, make_plan
from runner.plans.run_parts import RunParts
from runner.restarts import Restarts

PLANS = {
    "ppo": ("ppo_cartpole", []),
    "a2c, 100 updates": ("a2c_cartpole", []),
    "a3c, 100 gradients": ("a2c_cartpole", ["algorithm=a3c"]),
    "concurrently, queue": (
        "ppo_cartpole",
        [
            "algorithm.plan=[{Concurrently: {plans: [[ParallelRollouts,{Enqueue: {queue: q}}],"
            "[{Dequeue: {queue: q}},TrainOneStep]], output_indexes: [1]}}]"
        ],
    ),
}
BUDGET_US = 100.0


class IdleRunner:
    """Answers each request with the same sample."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample

    def sample(self, *_: Any) -> Sample:
        return self._sample

    def sample_gradients(self, *_: Any) -> Any:
        from runner.env_runners.gradient_runner import GradientSample

        return GradientSample(**vars(self._sample.without_rollout()), gradients=GroupGradients())

    def close(self) -> None:
        pass


class IdleLearners:
    """Learners that do not update anything."""

    num_restarts = 0

    def __init__(self, learners: Any) -> None:
        self._weights = learners.get_weights()
        self.modules = learners.modules

    def update(self, *_: Any) -> UpdateResult:
        return UpdateResult({"default_policy": {"total_loss": 0.0}}, 0.0, 0.0)

    def apply(self, *_: Any) -> dict[str, dict[str, float]]:
        return {"default_policy": {"total_loss": 0.0}}

    def get_weights(self) -> Any:
        return self._weights

    def metrics(self) -> dict[str, int]:
        return {}


def results_of(experiment: str, overrides: list[str]) -> tuple[Callable[[], Any], RunMetrics]:
    config = build_experiment_config(compose_experiment([f"+experiment={experiment}", *overrides]))
    with Trainer(config) as trainer:
        runners, learners = trainer.env_runners, IdleLearners(trainer.learners)
        num_env_steps = 40 if experiment == "a2c_cartpole" else 4000
        (sample,) = runners.sample(num_env_steps, True)
    sample = Sample(sample.rollout, sample.finished, {"default_policy": {}})
    make = partial(LocalActor, lambda *_: IdleRunner(sample))
    group = EnvRunnerGroup(ActorGroup(make, 1, "env runner", Restarts(0, "")), {})
    metrics = RunMetrics(100)
    context = PlanContext(config, RunParts(learners, metrics, Callbacks(), group))  # type: ignore[arg-type]
    plan = make_plan(context)
    return lambda: (next(plan), metrics.finish_iteration()), metrics


def microseconds(experiment: str, overrides: list[str], iterations: int) -> list[float]:
    step, metrics = results_of(experiment, overrides)
    times = []
    for _ in range(iterations):
        metrics.begin_iteration()
        times.append(1e6 * bc.seconds_of(step))
    return times[iterations // 10 :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    iterations = 50 if args.quick else args.iterations
    rows = []
    for name, (experiment, overrides) in PLANS.items():
        times = microseconds(experiment, overrides, iterations)
        updates = 100 if "100" in name else 1
        median = statistics.median(times)
        rows.append([name, f"{median:.1f}", f"{median / updates:.1f}"])
    print(f"Median microseconds of {iterations} iterations; the target for an iteration of ppo is {BUDGET_US:.0f}.\n")
    print(bc.markdown_table(["plan", "per iteration", "per update"], rows))


if __name__ == "__main__":
    main()
