"""Evaluation: exactly so many whole episodes or env steps, the same ones each time, short ones not preferred."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner.cluster.actor_group import ActorGroup
from runner.cluster.actors import LocalActor
from runner.config.info_metrics import InfoMetric
from runner.config.schemas import EnvConfig
from runner.env_runners import stepping_env_runner
from runner.env_runners.env_makers import make_vector_env
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.env_runners.episode_infos import EpisodeInfos
from runner.env_runners.listeners import Cut, EpisodeListener, VectorStep
from runner.env_runners.vector_envs import SyncEnvironments
from runner.modules import ActorCriticModule
from runner.restarts import Restarts
from tests.modules.test_actor_critic_module import SMALL
from tests.support.coded_runs import coded_envs, coded_module, make_runner, weights_of
from tests.support.environments import coded_length, coded_reward


class LengthBySeed(gym.Env[Any, Any]):
    """An episode is 1 or 100 steps long, with equal odds that its seed decides."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    lengths: list[int] = []  # noqa: RUF012

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps_left = 1 if self.np_random.random() < 0.5 else 100
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps_left -= 1
        return np.ones(1, np.float32), 1.0, self.steps_left == 0, False, {}


def evaluation_of(env: Any, duration: int, explore: bool = False, module: Any = None, unit: str = "episodes") -> Any:
    torch.manual_seed(0)  # another network may end all episodes after the same number of steps
    module = module or ActorCriticModule(env.single_observation_space, env.single_action_space, SMALL)
    runner = make_runner(env, module, seed_name=("evaluation", 0, 0))
    return runner, lambda: runner.evaluate(duration, explore, weights_of(module), {}, unit=unit)


@pytest.mark.parametrize("num_episodes", [1, 3, 4, 10, 17])
@pytest.mark.parametrize("kind", ["batched", "sync"])
def test_first_episodes_of_each_sub_environment_by_quota(kind: str, num_episodes: int) -> None:
    lengths = [1, 9, 30, 2, 2]
    env, _ = coded_envs(kind, 4, lengths)
    _, evaluate = evaluation_of(env, num_episodes, module=coded_module())
    finished = evaluate()
    quotas = [num_episodes // 4 + (n < num_episodes % 4) for n in range(4)]
    expected = [(n, k) for n, quota in enumerate(quotas) for k in range(quota)]
    assert finished.env_of.tolist() == [n for n, _ in expected]
    assert finished.lengths.tolist() == [coded_length(lengths, n, k) for n, k in expected]
    assert finished.returns.tolist() == [
        sum(coded_reward(n, t, k) for t in range(1, coded_length(lengths, n, k) + 1)) for n, k in expected
    ]


def test_episodes_longer_than_an_evaluation_fragment(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> Any:
        env, _ = coded_envs("sync", 3, [40, 7, 22])
        return evaluation_of(env, 11, module=coded_module())[1]()

    whole = run()
    monkeypatch.setattr(stepping_env_runner, "EVALUATION_FRAGMENT", 5)
    cut = run()
    for name in ("returns", "lengths", "env_of"):
        np.testing.assert_array_equal(getattr(cut, name), getattr(whole, name))


class HeldRows(EpisodeListener):
    """Counts the fragments that are held in memory at each cut."""

    def __init__(self) -> None:
        self.fragments: list[Any] = []
        self.num_held: list[int] = []

    def on_cut(self, cut: Cut) -> None:
        self.fragments += map(weakref.ref, cut.fragments.values())
        self.num_held.append(sum(fragment() is not None for fragment in self.fragments))


def test_an_evaluation_frees_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping_env_runner, "EVALUATION_FRAGMENT", 5)
    env, _ = coded_envs("sync", 3, [40, 7, 22])
    rows, module = HeldRows(), coded_module()
    make_runner(env, module, listeners=[rows]).evaluate(6, weights=weights_of(module))
    assert len(rows.num_held) > 5
    assert max(rows.num_held) == 1


class FailsOnce(EpisodeListener):
    """Fails in vector step 12."""

    num_steps = 0

    def on_step(self, step: VectorStep) -> None:
        self.num_steps += 1
        if self.num_steps == 12:
            raise RuntimeError("it fails")


def test_a_sample_after_a_failed_evaluation_begins_with_resets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping_env_runner, "EVALUATION_FRAGMENT", 5)
    env, _ = coded_envs("sync", 2, [3])
    infos, module = EpisodeInfos([InfoMetric("env_runners/x", ("x",))], 2), coded_module()
    runner = make_runner(env, module, listeners=[infos, FailsOnce()])
    with pytest.raises(RuntimeError, match="it fails"):
        runner.evaluate(40, weights=weights_of(module))
    finished = runner.sample(12).finished
    assert len(finished.returns) == len(finished.infos["env_runners/x"]) == 4


LENGTHS = [1, 9, 30, 2, 2]


def ends_within(lengths: Sequence[int], num_steps: int, num_envs: int) -> list[tuple[int, int]]:
    """Sub-environment and number of each episode that ends within the sub-environment's part of the env steps."""
    found = []
    for n in range(num_envs):
        left, k = num_steps // num_envs + (n < num_steps % num_envs), 0
        while coded_length(lengths, n, k) <= left:
            left -= coded_length(lengths, n, k)
            found.append((n, k))
            k += 1
    return found


@pytest.mark.parametrize("fragment", [7, 256])
@pytest.mark.parametrize("num_steps", [1, 3, 5, 44, 203])
@pytest.mark.parametrize("kind", ["batched", "sync"])
def test_episodes_that_end_within_so_many_env_steps(
    kind: str, num_steps: int, fragment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepping_env_runner, "EVALUATION_FRAGMENT", fragment)
    env, _ = coded_envs(kind, 4, LENGTHS)
    _, evaluate = evaluation_of(env, num_steps, module=coded_module(), unit="env_steps")
    finished, expected = evaluate(), ends_within(LENGTHS, num_steps, 4)
    assert finished.env_of.tolist() == [n for n, _ in expected]
    assert finished.lengths.tolist() == [coded_length(LENGTHS, n, k) for n, k in expected]
    assert finished.returns.tolist() == [
        sum(coded_reward(n, t, k) for t in range(1, coded_length(LENGTHS, n, k) + 1)) for n, k in expected
    ]


def test_an_evaluation_of_env_steps_stops_with_the_last_of_them() -> None:
    env, log = coded_envs("sync", 1, [5])
    evaluation_of(env, 13, module=coded_module(), unit="env_steps")[1]()
    assert len(log) == 13


def test_an_unknown_unit_is_refused() -> None:
    env, _ = coded_envs("sync", 1, [5])
    with pytest.raises(ValueError, match="episodes or env_steps, not in hours"):
        evaluation_of(env, 1, module=coded_module(), unit="hours")[1]()


def test_short_episodes_are_not_preferred() -> None:
    """With the first 80 that end in any sub-environment, nearly all would be the short ones."""
    _, evaluate = evaluation_of(SyncEnvironments(LengthBySeed, 8, seed=5), 80)
    short = int((evaluate().lengths == 1).sum())
    assert 25 <= short <= 55  # 40 expected, standard deviation 4.5


@pytest.mark.parametrize("mode", ["auto", "sync"])
@pytest.mark.parametrize("explore", [False, True])
def test_each_call_runs_the_same_episodes(mode: str, explore: bool) -> None:
    env = make_vector_env(EnvConfig(env="CartPole-v1"), 3, mode, seed=0)
    _, evaluate = evaluation_of(env, 7, explore)
    first, second = evaluate(), evaluate()
    np.testing.assert_array_equal(first.returns, second.returns)
    assert len(np.unique(first.returns)) > 2  # that differ from each other


def test_sampling_before_does_not_change_the_episodes() -> None:
    env = make_vector_env(EnvConfig(env="CartPole-v1"), 3, "auto", seed=0)
    runner, evaluate = evaluation_of(env, 7, explore=True)
    first = evaluate()
    runner.sample(100, True, weights_of(runner.module), {})
    np.testing.assert_array_equal(evaluate().returns, first.returns)


def make_group(num_runners: int) -> EnvRunnerGroup:
    def make(index: int, generation: int) -> LocalActor:
        env, _ = coded_envs("sync", 2, [3, 5])
        seed_name = "evaluation", index, generation
        return LocalActor(lambda *_: make_runner(env, coded_module(), seed_name=seed_name), 0, 0)

    env, _ = coded_envs("sync", 1, [1])
    actors = ActorGroup(make, num_runners, "env runner", Restarts(0, ""))
    group = EnvRunnerGroup(actors, {"default_policy": make_runner(env, coded_module()).env_to_module})
    group.set_weights(weights_of(coded_module()))
    return group


@pytest.mark.parametrize("num_episodes", [1, 2, 3, 8])
def test_a_group_runs_exactly_so_many_also_fewer_than_it_has_runners(num_episodes: int) -> None:
    finished = make_group(3).submit_evaluation(num_episodes, False)()
    assert len(finished.returns) == len(finished.lengths) == num_episodes
    assert set(finished.lengths.tolist()) <= {3, 5}


@pytest.mark.parametrize("num_steps", [1, 2, 20, 100])
def test_a_group_shares_env_steps_among_its_runners(num_steps: int) -> None:
    finished = make_group(3).submit_evaluation(num_steps, False, unit="env_steps")()
    shares = [num_steps // 3 + (index < num_steps % 3) for index in range(3)]
    expected = [end for share in shares for end in ends_within([3, 5], share, 2)]
    assert finished.lengths.tolist() == [coded_length([3, 5], n, k) for n, k in expected]


@pytest.mark.parametrize("num_steps", [1, 2, 10, 11])
def test_a_group_samples_at_least_so_many_steps_also_fewer_than_it_has_runners(num_steps: int) -> None:
    group = make_group(3)
    for _ in range(3):
        samples = group.sample(num_steps, True)
        assert len(samples) == 3
        assert (
            num_steps
            <= sum(sample.rollout.blocks["default_policy"].num_rows for sample in samples)
            <= max(num_steps, 3) + 3
        )
