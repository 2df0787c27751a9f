"""Environments with a limited number of env steps per episode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from runner.env_runners.limited_envs import limited
from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.env_runners.multi_agent_envs import MultiAgentEnvironments
from runner.env_runners.running_agents import FinishedEpisode, RunningAgents
from tests.support.coded_agents import ALL, CodedAgentsEnv
from tests.support.environments import CodedVectorEnv, coded_reward


class Waits(MultiAgentEnv):
    """Agent a acts in every step, b only in the first one; all observations are one array, which counts the steps."""

    possible_agents = ("a", "b")
    observation_spaces = dict.fromkeys(possible_agents, gym.spaces.Box(0.0, 99.0, (1,), np.float32))
    action_spaces = dict.fromkeys(possible_agents, gym.spaces.Discrete(2))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._obs = np.zeros(1, np.float32)
        return dict.fromkeys(self.possible_agents, self._obs), {}

    def step(self, actions: dict[str, Any]) -> Any:
        self._obs += 1.0
        return {"a": self._obs}, {}, {}, {}, {}


class LeaveTogether(Waits):
    """Both agents terminate in the third step."""

    def step(self, actions: dict[str, Any]) -> Any:
        obs, *others = super().step(actions)
        others[1] = dict.fromkeys(self.possible_agents, bool(self._obs[0] == 3.0))
        return obs, *others


def test_agents_that_wait_at_the_limit_get_their_last_observation_again() -> None:
    env = limited(Waits(), 3)
    env.reset(seed=0)
    for _ in range(2):
        assert not env.step({"a": 0})[3]
    obs, _, _, truncateds, _ = env.step({"a": 0})
    assert {agent: one.tolist() for agent, one in obs.items()} == {"a": [3.0], "b": [0.0]}
    assert truncateds == {ALL: True}


def test_an_episode_whose_agents_terminate_at_the_limit_is_not_truncated() -> None:
    env = limited(LeaveTogether(), 3)
    env.reset(seed=0)
    for _ in range(3):
        obs, _, terminateds, truncateds, _ = env.step({"a": 0})
    assert list(obs) == ["a"]
    assert terminateds == {"a": True, "b": True}
    assert not truncateds


def ends_of(make_env: Callable[[], MultiAgentEnv]) -> list[tuple[int, bool]]:
    """Return the lengths of some episodes, and whether they are terminated."""
    envs = MultiAgentEnvironments(make_env, 1, seed=0)
    running = RunningAgents(envs, {"m": envs.environments[0].possible_agents})
    [step] = envs.reset(("check", 0, 0))
    finished: list[FinishedEpisode] = []
    while True:
        finished += running.update([step])[1]
        if len(finished) == 12:
            return [(episode.length, episode.is_terminated) for episode in finished]
        ended = {agent for ends in (step.terminateds, step.truncateds) for agent, is_end in ends.items() if is_end}
        [step] = envs.step([dict.fromkeys(step.obs.keys() - ended, 0)])


@pytest.mark.parametrize("limit", [1, 3, 6])
@pytest.mark.parametrize("seed", range(10))
def test_episodes_end_like_those_of_the_environment_up_to_the_limit(seed: int, limit: int) -> None:
    whole = ends_of(lambda: CodedAgentsEnv(0, seed, 3))
    expected = [(length, is_terminated) if length <= limit else (limit, False) for length, is_terminated in whole]
    assert ends_of(lambda: limited(CodedAgentsEnv(0, seed, 3), limit)) == expected


class SharesItsInfos(CodedVectorEnv):
    """Its infos do not have a value per sub-environment, which is an error only if they are read."""

    def _vector_infos(self, infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {"frames_per_second": 3.0}


def test_infos_that_do_not_belong_to_single_sub_environments() -> None:
    env = limited(SharesItsInfos(1, [50]), 2)
    obs, info = env.reset(seed=0)
    assert (obs.tolist(), info) == ([0, 0, 0], {})
    env.step(0)
    obs, reward, terminated, truncated, info = env.step(1)
    assert (obs.tolist(), reward, terminated, truncated, info) == ([0, 2, 0], coded_reward(0, 2, 0), False, True, {})
