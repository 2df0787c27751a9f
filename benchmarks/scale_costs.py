"""Measures the costs of requests, samples, weights and updates on this machine, as the fastest of several repeats."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from bench_common import seconds_of

FRAGMENT = 100
WEIGHTS_BYTES = (10_000, 1_000_000, 10_000_000)
NUM_RUNNERS = (16, 64, 256, 1000)
CARTPOLE, IMAGES = "CartPole, MLP", "84x84x4 images, CNN"
_REPEATS = 10
_LARGER = {CARTPOLE: 32, IMAGES: 3}  # rows of a large update, in multiples of a small one

# Kind of environment and module -> overrides of the experiment.
OVERRIDES: Mapping[str, tuple[str, ...]] = {
    CARTPOLE: (),
    IMAGES: (
        "env.env=null",
        "env._target_=scale_costs.ImageEnv",
        "module.conv_filters=[[32,8,4],[64,4,2],[64,3,1]]",
        "module.fcnet_hiddens=[512]",
    ),
}


class ImageEnv(gym.Env[npt.NDArray[np.uint8], np.int64]):
    """Random images of the size of wrapped Atari frames; a step takes no time."""

    observation_space = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gym.spaces.Discrete(6)  # type: ignore[assignment]

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._image = np.random.default_rng(0).integers(0, 256, (84, 84, 4), np.uint8)
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode of 1,000 steps."""
        super().reset(seed=seed)
        self._t = 0
        return self._image, {}

    def step(self, action: Any) -> Any:
        """Return the same image again."""
        self._t += 1
        return self._image, 1.0, False, self._t == 1000, {}


@dataclass(frozen=True)
class Cost:
    """One measured number.

    Attributes:
        name: name of the cost.
        of: subject of the cost.
        value: value; for times, the fastest of the repeats.
        unit: `s` or `bytes`.
    """

    name: str
    of: str
    value: float
    unit: str


def fastest(call: Callable[[], Any], repeats: int = _REPEATS) -> float:
    """Return the seconds of the fastest call."""
    return min(seconds_of(call) for _ in range(repeats))


def measure() -> list[Cost]:
    """Measure all costs in about two minutes; starts Ray with two CPUs, and stops it."""
    from runner.cluster import start_local_ray, stop_ray

    start_local_ray(num_cpus=2)
    try:
        of_samples = [cost for kind in OVERRIDES for cost in _of_samples(kind)]
        return [*of_samples, *_of_weights(), *_of_looks(), *_of_many_runners()]
    finally:
        stop_ray()


def _of_samples(kind: str) -> list[Cost]:
    """Measure one remote env runner with one sub-environment, and updates on its samples in this process."""
    import ray

    from runner import Trainer
    from runner.episodes.columns import concat_rollouts

    overrides = [
        "env_runners.num_env_runners=1",
        "env_runners.num_envs_per_env_runner=1",
        "evaluation.evaluation_interval=null",
        "tracking=none",
        *OVERRIDES[kind],
    ]
    asked, collected = [], []
    with Trainer.from_experiment("impala_cartpole", overrides) as trainer:
        group, learners = trainer.env_runners, trainer.learners
        group.set_weights(learners.get_weights())
        for _ in range(_REPEATS):
            started = time.perf_counter()
            ticket = group.request(0, FRAGMENT, True)
            asked.append(time.perf_counter() - started)
            ray.wait([ticket.reference])
            started = time.perf_counter()
            sample = group.collect(ticket)
            collected.append(time.perf_counter() - started)
        large = concat_rollouts([sample.rollout] * _LARGER[kind])
        updates = {
            rollout.num_env_steps: fastest(lambda rollout=rollout: learners.update(rollout, 0), 4)  # type: ignore[misc]
            for rollout in (sample.rollout, large)
        }
        joined = fastest(lambda: concat_rollouts([sample.rollout] * 8)) / 8
        weights_bytes = sum(vector.nbytes for vector in learners.get_weights().values())
        per_step = sample.bytes_per_env_step
    of = f"{kind}, {FRAGMENT} env steps"
    (few, few_s), (many, many_s) = sorted(updates.items())
    row_s = max(0.0, many_s - few_s) / (many - few)
    return [
        Cost("ask_s", of, min(asked), "s"),
        Cost("collect_s", of, min(collected), "s"),
        Cost("join_s", of, joined, "s"),
        Cost("row_s", kind, row_s, "s"),
        Cost("update_s", kind, max(0.0, few_s - few * row_s), "s"),
        Cost("bytes_per_env_step", of, per_step, "bytes"),
        Cost("weights_bytes", kind, float(weights_bytes), "bytes"),
    ]


def _of_weights() -> list[Cost]:
    """Measure storing weights, and copying them from the object store in another process."""
    import ray

    @ray.remote(num_cpus=1)
    class Taker:
        def take(self, boxed: list[Any]) -> float:
            started = time.perf_counter()
            for vector in ray.get(boxed[0]).values():
                vector.copy()
            return time.perf_counter() - started

    taker: Any = Taker.remote()  # type: ignore[attr-defined]
    costs = []
    for size in WEIGHTS_BYTES:
        weights = {"default_policy": np.ones(size // 4, np.float32)}
        of = f"{size / 1e6:g} MB"
        costs.append(Cost("put_s", of, fastest(lambda weights=weights: ray.put(weights)), "s"))  # type: ignore[misc]
        taken = [ray.get(taker.take.remote([ray.put(weights)])) for _ in range(_REPEATS)]
        costs.append(Cost("take_s", of, min(taken), "s"))
    return costs


def _of_looks() -> list[Cost]:
    """Measure how long it takes to check which of an actor's requests are answered, if none is."""
    import ray

    from runner.cluster.actors import RemoteFuture
    from runner.cluster.futures import ready

    @ray.remote(num_cpus=1)
    class Sleeper:
        def sleep(self) -> None:
            time.sleep(60)

    never_late: Any = SimpleNamespace(deadline_s=lambda submitted_s: None)
    sleeper: Any = Sleeper.remote()  # type: ignore[attr-defined]
    futures = [RemoteFuture(never_late, "sleep", sleeper.sleep.remote()) for _ in range(max(NUM_RUNNERS))]
    costs = []
    for number in NUM_RUNNERS:
        looked_s = fastest(lambda number=number: list(ready(futures[:number])))  # type: ignore[misc]
        costs.append(Cost("look_s", f"{number:,} env runners", looked_s, "s"))
    ray.kill(sleeper)
    return costs


class _Answering:
    """An env runner in this process that returns the same sample without delay."""

    def __init__(self, sample: Any) -> None:
        self._sample = sample

    def sample(self, *arguments: Any) -> Any:
        """Return the sample."""
        return self._sample


def _of_many_runners() -> list[Cost]:
    """Measure the plan's other work per sample, which grows with the number of env runners."""
    from runner.cluster.actor_group import ActorGroup
    from runner.cluster.actors import LocalActor
    from runner.config.operators import ParallelRolloutsConfig
    from runner.env_runners.env_runner_group import EnvRunnerGroup
    from runner.env_runners.sample import Sample
    from runner.episodes.columns import Rollout
    from runner.plans.async_requests import AsyncRequests
    from runner.plans.run_metrics import RunMetrics
    from runner.restarts import Restarts
    from runner.rows.finished_episodes import FinishedEpisodes

    sample = Sample(Rollout({}, FRAGMENT), FinishedEpisodes(*[np.zeros(0)] * 3), {})  # type: ignore[arg-type]
    options = ParallelRolloutsConfig(mode="async", num_async=2)
    costs = []
    for number in NUM_RUNNERS:
        make = partial(LocalActor, lambda *_: _Answering(sample))
        group = EnvRunnerGroup(ActorGroup(make, number, "env runner", Restarts(0, "")), {})
        requests = AsyncRequests(group, RunMetrics(10), options, "sample", FRAGMENT, True)
        requests.next_ready()
        costs.append(Cost("bookkeeping_s", f"{number:,} env runners", fastest(requests.next_ready), "s"))
    return costs


def value_of(costs: list[Cost], name: str, of: str) -> float:
    """Return the value of a cost whose subject starts with `of`."""
    return statistics.median(cost.value for cost in costs if cost.name == name and cost.of.startswith(of))
