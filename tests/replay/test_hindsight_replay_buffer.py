"""Hindsight replay against episodes that are known step by step; refusals; runs that go on bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from runner import Trainer
from runner.config.compose import compose_experiment
from runner.config.errors import ConfigError
from runner.config.validation import build_experiment_config
from runner.environments import BitFlipping
from runner.episodes.columns import ColumnBlock, Rollout
from runner.experiment.replay_builder import build_replay_buffers
from runner.pipelines import SingleAgentObservationPreprocessor
from runner.replay import HindsightReplayBuffer, ReplayBuffer
from runner.replay.goals import DESIRED, GoalJudge
from runner.replay.hindsight_replay_buffer import STRATEGIES
from runner.streams import random_stream
from tests.support.resuming import assert_resumes_exactly

ID = "default_policy"
N = 4


@dataclass
class KnownEpisode:
    """Bits and goal of an episode; `num_written` steps of it are in the buffer."""

    bits: list[Any]
    goal: Any
    actions: list[int]
    num_written: int = 0
    rows: list[int] = field(default_factory=list)

    @property
    def is_solved(self) -> bool:
        return bool((self.bits[-1] == self.goal).all())


def episode_of(stream: np.random.Generator, length: int) -> KnownEpisode:
    """Steps of random actions, to the goal or until there are so many."""
    env = BitFlipping(N)
    obs, _ = env.reset(seed=int(stream.integers(1 << 30)))
    bits, actions = [obs["achieved_goal"]], []
    while len(actions) < length and not (bits[-1] == obs["desired_goal"]).all():
        actions.append(int(stream.integers(N)))
        after = bits[-1].copy()
        after[actions[-1]] ^= 1
        bits.append(after)
    return KnownEpisode(bits, obs["desired_goal"], actions)


def block_of(episodes: Sequence[KnownEpisode], lengths: Sequence[int]) -> ColumnBlock:
    """The next steps of each episode, so many of them, as one block."""
    pairs = [(one, min(n, len(one.actions) - one.num_written)) for one, n in zip(episodes, lengths, strict=True)]
    pairs = [(one, n) for one, n in pairs if n > 0]
    obs, actions, rewards = [], [], []
    for one, n in pairs:
        first = one.num_written
        obs += one.bits[first : first + n + 1]
        actions += one.actions[first : first + n]
        rewards += [0.0 if (bits == one.goal).all() else -1.0 for bits in one.bits[first + 1 : first + n + 1]]
    goals = np.concatenate([np.tile(one.goal, (n + 1, 1)) for one, n in pairs])
    ends = np.array([one.num_written + n == len(one.actions) for one, n in pairs])
    solved = np.array([one.is_solved for one, _ in pairs])
    block = ColumnBlock(
        columns={
            "obs": {"observation": np.array(obs), "achieved_goal": np.array(obs), "desired_goal": goals},
            "actions": np.array(actions),
            "rewards": np.array(rewards, np.float32),
        },
        lengths=np.array([n for _, n in pairs]),
        is_terminated=ends & solved,
        is_truncated=ends & ~solved,
        t_started=np.array([one.num_written for one, _ in pairs]),
        episode_ids=[str(id(one)) for one, _ in pairs],
    )
    for one, n in pairs:
        one.num_written += n
    return block


def buffer_of(judge: GoalJudge | None = None, **arguments: Any) -> HindsightReplayBuffer:
    buffer = HindsightReplayBuffer(**{"capacity": 200, **arguments})
    buffer.use_stream(random_stream(0, "test"))
    buffer.use_judge(judge or GoalJudge(BitFlipping(N)))
    return buffer


def add(buffer: ReplayBuffer, block: ColumnBlock) -> None:
    buffer.add(Rollout({ID: block}, block.num_rows))


def goals_of(episode: KnownEpisode, step: int, strategy: str) -> list[Any]:
    """The goals that a step may get, of what is written of its episode."""
    known = episode.bits[: episode.num_written + 1]
    return {"future": known[step + 1 :], "final": known[-1:], "episode": known}[strategy]


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(STRATEGIES), st.integers(0, 2**20), st.integers(12, 60), st.integers(1, 4))
def test_goals_rewards_and_ends_are_those_of_a_goal_of_the_episode(
    strategy: str, seed: int, capacity: int, num_envs: int
) -> None:
    """Steps of several running episodes in turns; old rows leave the buffer."""
    stream = np.random.default_rng(seed)
    buffer = buffer_of(goal_strategy=strategy, capacity=capacity)
    running, all_of_them = [episode_of(stream, 8) for _ in range(num_envs)], []
    all_of_them += running
    for _ in range(12):
        add(buffer, block_of(running, stream.integers(1, 4, num_envs)))
        for number, one in enumerate(running):
            if one.num_written == len(one.actions):
                running[number] = episode_of(stream, 8)
                all_of_them.append(running[number])
        if len(buffer) == 0:
            continue
        block = buffer.sample(40).rollout.blocks[ID]
        obs = block.columns["obs"]
        for i in range(40):
            before, after, goal = (
                obs["achieved_goal"][2 * i],
                obs["achieved_goal"][2 * i + 1],
                obs["desired_goal"][2 * i],
            )
            action = block.columns["actions"][i]
            assert np.array_equal(goal, obs["desired_goal"][2 * i + 1])
            is_reached = bool((after == goal).all())
            assert block.columns["rewards"][i] == (0.0 if is_reached else -1.0)
            assert block.is_terminated[i] == is_reached
            assert not (block.is_terminated[i] and block.is_truncated[i])
            allowed = [
                found
                for one in all_of_them
                for step in range(one.num_written)
                if np.array_equal(one.bits[step], before) and one.actions[step] == action
                for found in [one.goal, *goals_of(one, step, strategy)]
            ]
            assert any(np.array_equal(goal, found) for found in allowed)


def long_episode() -> KnownEpisode:
    """Eleven different states of 4 bits, and a goal among none of them."""
    numbers = [0, 1, 3, 2, 6, 7, 5, 4, 12, 13, 15]
    bits = [np.array([number >> bit & 1 for bit in range(N)], np.int8) for number in numbers]
    actions = [int(np.flatnonzero(a != b)[0]) for a, b in itertools.pairwise(bits)]
    return KnownEpisode(bits, np.array([1, 0, 0, 1], np.int8), actions)  # 9


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_goals_are_drawn_uniformly(strategy: str) -> None:
    buffer, episode = buffer_of(goal_strategy=strategy), long_episode()
    add(buffer, block_of([episode], [10]))
    replayed = buffer.sample(20_000)
    goals = replayed.rollout.blocks[ID].columns["obs"]["desired_goal"][::2] @ (1 << np.arange(N))
    of_its_own = goals == 9
    assert abs(of_its_own.mean() - 0.2) < 0.01, "four of five have another goal"
    numbers = [0, 1, 3, 2, 6, 7, 5, 4, 12, 13, 15]
    for step in (0, 4, 9):
        drawn = goals[(replayed.rows[ID] == step) & ~of_its_own]
        allowed = {"future": numbers[step + 1 :], "final": numbers[-1:], "episode": numbers}[strategy]
        counts = [int((drawn == number).sum()) for number in allowed]
        assert sum(counts) == len(drawn)
        assert len(counts) == 1 or chisquare(counts).pvalue > 1e-4


def test_a_step_that_solved_its_own_goal_is_cut_short_under_another() -> None:
    """Nothing was sampled after it, so that with another goal it is truncated, not terminated."""
    episode = long_episode()
    episode.goal = episode.bits[-1]
    buffer = buffer_of(goal_strategy="episode", num_sampled_goals=50)
    add(buffer, block_of([episode], [10]))
    replayed = buffer.sample(2000)
    block, is_last = replayed.rollout.blocks[ID], replayed.rows[ID] == 9
    is_solved = (block.columns["obs"]["desired_goal"][1::2] == episode.goal).all(-1)
    assert bool(is_last.any())
    assert np.array_equal(block.is_terminated[is_last], is_solved[is_last])
    assert np.array_equal(block.is_truncated[is_last], ~is_solved[is_last])
    assert not block.is_truncated[~is_last].any()


def test_without_other_goals_it_is_a_replay_buffer() -> None:
    plain, buffer = ReplayBuffer(200), buffer_of(num_sampled_goals=0)
    plain.use_stream(random_stream(0, "test"))
    for one in (plain, buffer):
        add(one, block_of([long_episode()], [10]))
    first, second = plain.sample(30).rollout.blocks[ID], buffer.sample(30).rollout.blocks[ID]
    assert np.array_equal(first.columns["obs"]["desired_goal"], second.columns["obs"]["desired_goal"])
    assert np.array_equal(first.columns["rewards"], second.columns["rewards"])


class OneByOne(BitFlipping):
    """Takes one goal at a time."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        assert isinstance(info, dict)
        return -float(sum(int(a != b) for a, b in zip(achieved_goal, desired_goal, strict=True)))

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return bool(achieved_goal.tolist() == desired_goal.tolist())


class WithoutEnds(gym.Wrapper[Any, Any, Any, Any]):
    """No goal ends an episode."""

    compute_terminated = None

    @property
    def unwrapped(self) -> Any:
        return self

    def compute_reward(self, *arguments: Any) -> Any:
        return BitFlipping(N).compute_reward(*arguments)


def test_an_environment_that_judges_goals_one_by_one() -> None:
    judge, goals = GoalJudge(OneByOne(N)), np.random.default_rng(0).integers(0, 2, (2, 30, N), dtype=np.int8)
    np.testing.assert_array_equal(judge.rewards(*goals), -np.abs(goals[0] - goals[1]).sum(-1))
    np.testing.assert_array_equal(judge.are_terminated(*goals), (goals[0] == goals[1]).all(-1))
    assert judge.rewards(*goals).dtype == np.float32


def test_ends_stay_as_recorded_where_no_goal_ends_an_episode() -> None:
    buffer, episode = buffer_of(GoalJudge(WithoutEnds(BitFlipping(N)))), long_episode()
    add(buffer, block_of([episode], [10]))
    replayed = buffer.sample(500)
    block, is_last = replayed.rollout.blocks[ID], replayed.rows[ID] == 9
    assert not block.is_terminated.any()
    assert np.array_equal(block.is_truncated, is_last)
    assert bool((block.columns["rewards"] == 0).any())


class NoGoals(gym.Env[Any, Any]):
    """Has goals of two kinds."""

    observation_space = gym.spaces.Dict(
        observation=gym.spaces.Discrete(2), achieved_goal=gym.spaces.Discrete(2), desired_goal=gym.spaces.Discrete(3)
    )


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (gym.make("CartPole-v1"), "observations do not contain goals"),
        (NoGoals(), "goals are not arrays of the same space"),
    ],
    ids=str,
)
def test_environments_without_goals(env: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GoalJudge(env)


def test_an_environment_without_rewards_for_goals() -> None:
    env = BitFlipping(N)
    env.compute_reward = None  # type: ignore[assignment]
    with pytest.raises(ValueError, match="BitFlipping does not define compute_reward"):
        GoalJudge(env)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_step": 3}, "n_step 1, got 3"),
        ({"goal_strategy": "past"}, "goal_strategy must be one of future, final, episode, got 'past'"),
        ({"num_sampled_goals": -1}, "num_sampled_goals must be a non-negative integer, got -1"),
        ({"num_sampled_goals": 0.5}, "got 0.5"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HindsightReplayBuffer(**arguments)


class WithoutDesiredGoal(SingleAgentObservationPreprocessor):
    """Stores observations without the desired goal."""

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """Return the space without the desired goal."""
        parts = input_observation_space.spaces.items()
        return gym.spaces.Dict({name: part for name, part in parts if name != DESIRED})

    def preprocess(self, observation: Any, episode: Any) -> Any:
        """Return the observation without the desired goal."""
        return {name: part for name, part in observation.items() if name != DESIRED}


QUICK = (
    *("seed=100", "tracking=none", "env.env_config={num_bits: 5}", "module.fcnet_hiddens=[8]"),
    *("algorithm.num_steps_sampled_before_learning_starts=60", "algorithm.min_sample_timesteps_per_iteration=100"),
    *("algorithm.train_batch_size_per_learner=8", "algorithm.training_intensity=1"),
)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("env=cartpole",), "hindsight replay: observations do not contain goals: Box"),
        (("algorithm.n_step=3",), "cannot be created: steps with other goals need n_step 1"),
        (("env=multi_agent_cartpole", "module=double_q"), "several agents"),
        (
            (
                "connectors.env_to_module=[{insert_after: AddObservationsFromEpisodesToBatch, "
                f"connector: {{_target_: {__name__}.WithoutDesiredGoal}}}}]",
            ),
            "but WithoutDesiredGoal stores changed goals",
        ),
    ],
    ids=str,
)
def test_experiments_that_do_not_fit(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Trainer.from_experiment("her_bit_flipping", [*QUICK[:2], *overrides])


class FloatBits(gym.ObservationWrapper[Any, Any, Any]):
    """Bit flipping with observations that MeanStdFilter can standardise."""

    def __init__(self, num_bits: int, render_mode: str | None = None) -> None:
        super().__init__(BitFlipping(num_bits, render_mode))
        box = gym.spaces.Box(0, 1, (num_bits,))
        self.observation_space = gym.spaces.Dict(observation=box, achieved_goal=box, desired_goal=box)

    def observation(self, observation: Any) -> Any:
        """Convert the bits."""
        return {name: bits.astype(np.float32) for name, bits in observation.items()}


@pytest.mark.parametrize(
    ("keys_to_leave", "is_stored", "is_valid"),
    [("[]", True, False), ("[achieved_goal, desired_goal]", True, True), ("[]", False, True)],
)
def test_stored_goals_are_those_of_the_environment(keys_to_leave: str, is_stored: bool, is_valid: bool) -> None:
    at = "insert_after: AddObservationsFromEpisodesToBatch"
    connectors = [f"{{{at}, connector: {{_target_: runner.pipelines.MeanStdFilter, keys_to_leave: {keys_to_leave}}}}}"]
    if is_stored:  # otherwise the episodes keep raw observations, and replayed ones are standardised
        connectors.append(
            "{insert_after: MeanStdFilter, connector: {_target_: runner.pipelines.WriteObservationsToEpisodes}}"
        )
    overrides = [
        *QUICK[1:3],
        f"env._target_={__name__}.FloatBits",
        "env.env=null",
        f"connectors.env_to_module=[{', '.join(connectors)}]",
    ]
    make = partial(Trainer.from_experiment, "her_bit_flipping", overrides)
    if is_valid:
        make().close()
    else:
        with pytest.raises(ConfigError, match="but MeanStdFilter stores changed goals"):
            make()


def test_an_environment_without_goals_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(CartPoleEnv, "close", lambda env: closed.append("closed"))
    config = build_experiment_config(compose_experiment(["+experiment=her_bit_flipping", "env=cartpole"]))
    with pytest.raises(ConfigError, match="do not contain goals"):
        build_replay_buffers(config, {})
    assert closed == ["closed"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_resumes_exactly(strategy: str, tmp_path: Path) -> None:
    options = [*QUICK, f"+algorithm.replay_buffers.replay.goal_strategy={strategy}", "algorithm.replay_capacity=150"]
    make = partial(Trainer.from_experiment, "her_bit_flipping", options)
    assert_resumes_exactly(make, tmp_path, num_after=3)


def test_the_environment_keeps_to_gymnasium() -> None:
    check_env(BitFlipping(6), skip_render_check=True)
    with pytest.raises(ValueError, match="num_bits must be 1 or more"):
        BitFlipping(0)


@pytest.mark.slow
def test_bits_that_hindsight_solves_and_plain_replay_does_not() -> None:
    """Ten bits: a random episode of ten steps reaches its goal once in about a hundred."""
    overrides = [
        *("seed=100", "tracking=none", "env.env_config={num_bits: 10}", "module.fcnet_hiddens=[128]"),
        "algorithm.train_batch_size_per_learner=64",
        "algorithm.epsilon=[[0, 1.0], [4000, 0.1]]",
    ]
    found = {}
    for buffer in ("HindsightReplayBuffer", "ReplayBuffer"):
        options = [*overrides, f"algorithm.replay_buffers.replay._target_=runner.replay.{buffer}"]
        with Trainer.from_experiment("her_bit_flipping", options) as trainer:
            while trainer.train()["num_env_steps_sampled_lifetime"] < 6000:
                pass
            found[buffer] = trainer.evaluate()["evaluation/env_runners/episode_return_mean"]
    assert found["HindsightReplayBuffer"] > -5.5, "the best return is -4"
    assert found["ReplayBuffer"] < -7
