"""`round_robin_weights: auto`: the ratio of trained to sampled env steps is exact, whatever the fragments."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from runner import Trainer
from tests.support.configs import config_from

STARTS, BATCH = 40, 8


def trainer_of(*overrides: str) -> Trainer:
    settings = (
        *("algorithm=dqn", "module=double_q", "env=cartpole", "module.fcnet_hiddens=[4]", "evaluation=none"),
        *("tracking=none", "stop.training_iteration=1", f"algorithm.train_batch_size_per_learner={BATCH}"),
        f"algorithm.num_steps_sampled_before_learning_starts={STARTS}",
        "algorithm.min_sample_timesteps_per_iteration=0",
    )
    return Trainer(config_from(*settings, *overrides))


def check(result: Any, intensity: float, started_at: int) -> None:
    """Nothing is owed but less than an update, for the steps since learning could start."""
    sampled = result["num_env_steps_sampled_lifetime"] - started_at
    trained = result["num_env_steps_trained_lifetime"]
    assert trained < intensity * sampled + BATCH
    assert result["training_intensity"] == trained / result["num_env_steps_sampled_lifetime"]


def at_turns(trainer: Trainer, intensity: float, started_at: int, num_updates: int) -> list[tuple[int, int]]:
    """Env steps sampled and trained on after each of some updates; each is checked."""
    seen = []
    for _ in range(num_updates):
        result: Any = trainer.train()
        check(result, intensity, started_at)
        seen.append((result["num_env_steps_sampled_lifetime"], result["num_env_steps_trained_lifetime"]))
    return seen


@pytest.mark.parametrize("length", [1, 3, 17])
@pytest.mark.parametrize("runners", ["env_runners.num_env_runners=0", "env_runners.num_env_runners=2"])
@pytest.mark.parametrize("intensity", [0.5, 4, 32.5])
def test_the_ratio_is_exact(length: int, runners: str, intensity: float) -> None:
    settings = [
        *(f"algorithm.training_intensity={intensity}", f"env_runners.rollout_fragment_length={length}"),
        *(runners, "engine=inline"),
    ]
    per_round = length * (2 if runners.endswith("2") else 1)
    with trainer_of(*settings) as trainer:
        # The buffer of each module has as many env steps as were sampled, until it has enough.
        started_at = -(-STARTS // per_round) * per_round - per_round
        seen = at_turns(trainer, intensity, started_at, 60)
        state = trainer.get_state()
        straight = at_turns(trainer, intensity, started_at, 40)
    for (sampled, trained), (next_sampled, _) in pairwise(seen):
        if next_sampled > sampled:  # it sampled again, so nothing was owed
            assert trained >= intensity * (sampled - started_at)
            assert next_sampled - sampled >= per_round
    with trainer_of(*settings) as trainer:
        trainer.set_state(state)
        assert at_turns(trainer, intensity, started_at, 40) == straight


def test_without_an_intensity_items_take_turns() -> None:
    with trainer_of("env_runners.rollout_fragment_length=5", "algorithm.training_intensity=null") as trainer:
        results: list[Any] = [trainer.train() for _ in range(10)]
    counts = [(one["num_env_steps_sampled_lifetime"], one["num_env_steps_trained_lifetime"]) for one in results]
    assert counts == [(STARTS + 5 * number, BATCH * (number + 1)) for number in range(10)]


def test_nothing_is_owed_for_steps_before_a_resume_with_another_intensity() -> None:
    with trainer_of("algorithm.training_intensity=32", "env_runners.rollout_fragment_length=1") as trainer:
        for _ in range(100):
            result: Any = trainer.train()
        state = trainer.get_state()
    sampled, trained = result["num_env_steps_sampled_lifetime"], result["num_env_steps_trained_lifetime"]
    for intensity in (1, 128):
        with trainer_of(
            f"algorithm.training_intensity={intensity}", "env_runners.rollout_fragment_length=1"
        ) as trainer:
            trainer.set_state(state)
            results: list[Any] = [trainer.train() for _ in range(48)]
        more_sampled = results[-1]["num_env_steps_sampled_lifetime"] - sampled
        more_trained = results[-1]["num_env_steps_trained_lifetime"] - trained
        assert 0 <= more_trained - intensity * (more_sampled - 1) < BATCH + intensity


def test_a_buffer_with_other_arguments_begins_empty_and_says_so() -> None:
    settings = ("env_runners.rollout_fragment_length=5", "algorithm.training_intensity=8")
    with trainer_of(*settings) as trainer:
        for _ in range(5):
            before: Any = trainer.train()
        state = trainer.get_state()
    warnings: list[str] = []
    with trainer_of(*settings, "algorithm.gamma=0.9") as trainer, trainer.notes.shown_by(warnings.append):
        trainer.set_state(state)
        after: Any = trainer.train()
    assert len(warnings) == 1
    assert "replay buffer replay starts empty" in warnings[0]
    assert after["num_env_steps_sampled_lifetime"] - before["num_env_steps_sampled_lifetime"] >= STARTS


def test_learning_starts_with_a_full_buffer() -> None:
    """Last observations take places, so a buffer may never hold as many steps as learning waits for."""
    settings = ("env_runners.rollout_fragment_length=5", "algorithm.replay_capacity=50")
    with trainer_of(*settings, "algorithm.num_steps_sampled_before_learning_starts=49") as trainer:
        result: Any = trainer.train()
    assert result["num_env_steps_sampled_lifetime"] <= 60


@pytest.mark.parametrize(
    ("algorithm", "env", "per_env_step"), [("dqn", "cartpole", 0.25), ("sac", "pendulum", 1), ("td3", "pendulum", 1)]
)
@pytest.mark.parametrize("num_envs", [1, 3])
def test_updates_of_an_algorithm_with_nothing_but_an_environment(
    algorithm: str, env: str, per_env_step: float, num_envs: int
) -> None:
    """Whatever the number of sub-environments and the size of an update."""
    settings = (
        *(f"algorithm={algorithm}", f"env={env}", "module.fcnet_hiddens=[4]", "evaluation=none", "tracking=none"),
        *("stop.training_iteration=1", "algorithm.train_batch_size_per_learner=8"),
        *(f"env_runners.num_envs_per_env_runner={num_envs}", "algorithm.num_steps_sampled_before_learning_starts=100"),
        "algorithm.min_sample_timesteps_per_iteration=300",
    )
    with Trainer(config_from(*settings)) as trainer:
        results: list[Any] = [trainer.train() for _ in range(2)]
    for result in results:
        since_start = result["num_env_steps_sampled_lifetime"] - 100
        assert (
            abs(result["num_gradient_steps_lifetime"] - per_env_step * since_start) <= per_env_step * num_envs * 4 + 1
        )
    assert results[1]["num_gradient_steps_lifetime"] > results[0]["num_gradient_steps_lifetime"]
