"""The state of plans: a run that goes on from a checkpoint on disk equals one that was not interrupted, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from runner.experiment.trainer import Trainer
from runner.plans import Experiences, Operator
from tests.conftest import without_times
from tests.support.resuming import assert_resumes_exactly

SMALL = (
    "algorithm.train_batch_size_per_learner=40",
    "algorithm.min_sample_timesteps_per_iteration=0",
    "env_runners.num_envs_per_env_runner=2",
    "env_runners.rollout_fragment_length=10",
    "module.fcnet_hiddens=[4]",
    "evaluation=none",
    "tracking=none",
    "stop.training_iteration=100",
)
TWO = ("engine=inline", "env_runners.num_env_runners=2")
THREE = ("engine=inline", "env_runners.num_env_runners=3")
FILTER = "connectors=mean_std_filter"
ASYNC = "{ParallelRollouts: {mode: async, num_async: 2}}"
QUEUE = (
    "[{Concurrently: {output_indexes: [1], plans: [[ParallelRollouts, Enqueue], [Dequeue, TrainOneStep]], "
    "round_robin_weights: [3, 2]}}]"
)
DUPLICATE = (
    "[{ParallelRollouts: {mode: raw}}, {Duplicate: {plans: [[TrainOneStep], "
    "[{ConcatBatches: {min_env_steps: 50}}, TrainOneStep]], output_indexes: [0], round_robin_weights: [2, 1]}}]"
)
SEVERAL = (
    "[{Concurrently: {plans: [[AsyncGradients, {ApplyGradients: {update_all: false}}], "
    "[ParallelRollouts, TrainOneStep]], mode: async}}]"
)
STALE = "[AsyncGradients, {AverageGradients: {num_gradients: 2}}, {ApplyGradients: {update_all: false}}]"
MIXED = "[ParallelRollouts, {MixInReplay: {replay_proportion: 0.7}}, TrainOneStep]"
OWN = "[ParallelRollouts, {_target_: tests.support.own_plans.EverySecond, first: 1}, ConcatBatches, TrainOneStep]"

# Name -> experiment and overrides.
PLANS: dict[str, tuple[str, list[str]]] = {
    "a2c": ("a2c_cartpole", ["algorithm.min_sample_timesteps_per_iteration=50"]),
    "pg": ("pg_cartpole", ["algorithm.min_sample_timesteps_per_iteration=50"]),
    "a3c": ("a2c_cartpole", [*TWO, FILTER, "algorithm.plan=[AsyncGradients, {ApplyGradients: {update_all: false}}]"]),
    "a3c_two_each": (
        "a2c_cartpole",
        [*TWO, "algorithm.plan=[{AsyncGradients: {num_async: 2}}, {ApplyGradients: {update_all: false}}]"],
    ),
    "stale_runners": ("a2c_cartpole", [*THREE, f"algorithm.plan={STALE}"]),
    "async": (
        "a2c_cartpole",
        [*TWO, f"algorithm.plan=[{ASYNC}, {{ConcatBatches: {{min_env_steps: 50}}}}, TrainOneStep]"],
    ),
    "impala": ("impala_cartpole", [*TWO, FILTER, "algorithm.min_sample_timesteps_per_iteration=50"]),
    "raw": ("ppo_cartpole", [*THREE, "algorithm.plan=[{ParallelRollouts: {mode: raw}}, TrainOneStep]"]),
    "queue": ("a2c_cartpole", [f"algorithm.plan={QUEUE}"]),
    "duplicate": ("a2c_cartpole", [*TWO, f"algorithm.plan={DUPLICATE}"]),
    "several": ("a2c_cartpole", [*TWO, f"algorithm.plan={SEVERAL}"]),
    "a2c_replay": ("a2c_replay_cartpole", [*TWO, FILTER]),
    "dqn": (
        "dqn_cartpole",
        [*TWO, FILTER, "algorithm.num_steps_sampled_before_learning_starts=100", "algorithm.training_intensity=7.5"],
    ),
    "rainbow": ("rainbow_cartpole", [*TWO, FILTER, "algorithm.num_steps_sampled_before_learning_starts=100"]),
    "sac": (
        "sac_pendulum",
        [*TWO, "algorithm.num_steps_sampled_before_learning_starts=100", "algorithm.train_batch_size_per_learner=16"],
    ),
    "td3": (
        "td3_pendulum",
        [*TWO, "algorithm.num_steps_sampled_before_learning_starts=100", "algorithm.train_batch_size_per_learner=16"],
    ),
    "redq": (
        "sac_pendulum",
        [
            *TWO,
            *("module.num_critics=3", "module.critic_dropout=0.1", "algorithm.num_target_critics=2"),
            *("algorithm.policy_delay=3", "algorithm.train_batch_size_per_learner=16"),
            "algorithm.num_steps_sampled_before_learning_starts=100",
        ],
    ),
    "mixed_in_replay": ("a2c_replay_cartpole", [f"algorithm.plan={MIXED}"]),
    "own_operator": ("ppo_cartpole", [f"algorithm.plan={OWN}"]),
    "own_function": ("ppo_cartpole", ["algorithm.plan=[{_target_: tests.support.own_plans.two_batches}]"]),
    "own_gradients": ("a2c_cartpole", [*TWO, FILTER, "algorithm.plan=[{_target_: tests.support.own_plans.gradients}]"]),
    "reported": ("ppo_cartpole", ["algorithm.plan=[{_target_: tests.support.own_plans.reported}]"]),
    "gradients": (
        "a2c_cartpole",
        ["algorithm.plan=[ParallelRollouts, ComputeGradients, {AverageGradients: {num_gradients: 3}}, ApplyGradients]"],
    ),
}
# The iterations before the checkpoint: of plans whose operators keep something only now and then, more than one.
CUTS = {
    "a3c": (1, 2),
    "stale_runners": (1, 2, 3),
    "raw": (1, 2),
    "queue": (1, 2),
    "duplicate": (1, 2),
    "several": (1, 2),
}


def make(name: str) -> Trainer:
    experiment, overrides = PLANS[name]
    overrides = [*overrides, "algorithm.minibatch_size=20"] if experiment == "ppo_cartpole" else overrides
    return Trainer.from_experiment(experiment, [*SMALL, *overrides])


@pytest.mark.parametrize("name", PLANS)
def test_a_run_resumes_exactly(name: str, tmp_path: Path) -> None:
    assert_resumes_exactly(partial(make, name), tmp_path, cuts=CUTS.get(name, (2,)), num_after=4)


@pytest.mark.parametrize("name", ["queue", "raw", "async", "stale_runners"])
def test_what_operators_keep_is_in_the_checkpoint(name: str) -> None:
    """The property above would say nothing of them if they kept nothing."""
    with make(name) as trainer:
        trainer.train()
        state = trainer.get_state()
    kept = {
        "queue": lambda: state["plan"]["queues"]["queue"],
        "raw": lambda: state["plan"]["operators"]["ParallelRollouts"]["rest"],
        "async": lambda: state["plan"]["operators"]["ParallelRollouts"]["requests"]["answers"],
        "stale_runners": lambda: state["env_runners"]["older_weights"],
    }[name]()
    assert len(kept) > 0


def test_runners_that_compute_gradients_keep_what_no_call_brings() -> None:
    with make("a3c") as trainer:
        trainer.train()
        runner = trainer.get_state()["env_runners"]["runners"]["1"]
    modules = runner["learners"]["learners"]["default_policy"]["modules"]
    assert set(modules["default_policy"]) == {"loss", "stream"}
    with make("own_function") as trainer:
        trainer.train()
        assert "learners" not in trainer.get_state()["env_runners"]["runners"]["0"], "no gradient was asked for"


def test_another_plan_starts_its_operators_anew() -> None:
    with make("queue") as trainer:
        trainer.train()
        state = trainer.get_state()
    with make("a2c") as trainer:
        trainer.set_state(state)
        assert trainer.training_iteration == 1
        assert trainer.train()["training_iteration"] == 2
        assert json.dumps(trainer.get_state()["plan"]["queues"]) == "{}"


class Twice(Operator):
    """Gives each item two times."""

    takes = ("Experiences",)

    def transform(self, item: Experiences) -> Iterator[Experiences]:
        yield item
        yield item


def test_what_is_left_of_an_item_is_in_the_checkpoint() -> None:
    plan = f"algorithm.plan=[ParallelRollouts, {{_target_: {__name__}.Twice}}, TrainOneStep]"
    overrides = [*SMALL, *TWO, plan]
    with Trainer.from_experiment("a2c_cartpole", overrides) as trainer:
        trainer.train()
        state, expected = trainer.get_state(), trainer.train()
    with Trainer.from_experiment("a2c_cartpole", overrides) as resumed:
        resumed.set_state(state)
        assert without_times(resumed.train()) == without_times(expected)
    assert expected["num_env_steps_sampled"] == 0, "the second of an item"


def test_a_plan_that_never_waits_forgets_what_it_has_awaited() -> None:
    plan = (
        "algorithm.plan=[{Concurrently: {mode: async, plans: [[{ParallelRollouts: {mode: async}}, TrainOneStep], "
        "[{AsyncGradients: {}}, ApplyGradients]]}}]"
    )
    with Trainer.from_experiment("impala_cartpole", [*SMALL, "engine=inline", plan]) as trainer:
        for _ in range(3):
            trainer.train()
        assert set(trainer.env_runners.awaited) <= set(trainer.env_runners.in_flight)
