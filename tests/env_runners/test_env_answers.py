"""Rewards and flags of other types than float and bool, and action spaces that a reset replaces."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from runner.config.errors import RunFailure
from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.env_runners.multi_agent_envs import MultiAgentEnvironments
from runner.env_runners.running_agents import RunningAgents
from runner.env_runners.vector_envs import SyncEnvironments
from runner.testing import inspect_environment


class Answers(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, reward: Any = 1.5, terminated: Any = False) -> None:
        self.reward, self.terminated = reward, terminated

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), self.reward, self.terminated, False, {}


class AgentAnswers(MultiAgentEnv):
    possible_agents = ("a",)

    def __init__(self, reward: Any = 1.5, terminated: Any = False) -> None:
        self.reward, self.terminated = reward, terminated
        self.observation_spaces, self.action_spaces = {"a": Answers.observation_space}, {"a": Answers.action_space}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return {"a": np.zeros(2, np.float32)}, {}

    def step(self, actions: Any) -> Any:
        return {"a": np.zeros(2, np.float32)}, {"a": self.reward}, {"__all__": self.terminated}, {"__all__": False}, {}


def step_of(env: gym.Env[Any, Any]) -> tuple[float, bool]:
    envs = SyncEnvironments(lambda: env, 1, 0)
    envs.reset(("check", 0, 0))
    _, rewards, terminateds, _, _ = envs.step(np.zeros(1, np.int64))
    return float(rewards[0]), bool(terminateds[0])


def step_of_agents(env: MultiAgentEnv) -> tuple[float, bool]:
    envs = MultiAgentEnvironments(lambda: env, 1, 0)
    agents = RunningAgents(envs, {"m": ["a"]})
    agents.update(envs.reset(("check", 0, 0)))
    observed, _ = agents.update(envs.step([{"a": 0}]))
    [(_, reward)] = observed["m"].rewards
    return reward, bool(envs.is_done[0])


@pytest.mark.parametrize(
    "reward", [1.5, np.float32(1.5), np.array(1.5), np.array([1.5]), np.array([[1.5]]), [1.5], np.float16(1.5)]
)
def test_rewards_of_one_number(reward: Any) -> None:
    assert step_of(Answers(reward)) == (1.5, False)
    assert step_of_agents(AgentAnswers(reward)) == (1.5, False)
    for make in (Answers, AgentAnswers):
        assert not inspect_environment(lambda make=make: make(reward), 20).faults


@pytest.mark.parametrize("reward", ["1.5", np.ones(2), None, np.array([]), {"a": 1.0}, 1j])
def test_rewards_that_are_not_a_number(reward: Any) -> None:
    for step, env in ((step_of, Answers(reward)), (step_of_agents, AgentAnswers(reward))):
        with pytest.raises(RunFailure) as failure:
            step(env)
        problem = failure.value.problem
        assert (problem.what, problem.expected) == ("the environment's reward is not a number", "a float")
        assert "episode 0, step" in str(problem.where)


@pytest.mark.parametrize("flag", [True, np.True_, 1, 1.0, np.array(True), np.array([True]), np.array([1]), [True]])
def test_flags_of_one_value(flag: Any) -> None:
    assert step_of(Answers(terminated=flag)) == (1.5, True)
    assert step_of_agents(AgentAnswers(terminated=flag)) == (1.5, True)
    assert not inspect_environment(lambda: Answers(terminated=flag), 20).faults


@pytest.mark.parametrize("flag", ["False", 2, np.array([True, False]), {"a": True}, "no"])
def test_flags_that_are_not_a_bool(flag: Any) -> None:
    for step, env in ((step_of, Answers(terminated=flag)), (step_of_agents, AgentAnswers(terminated=flag))):
        with pytest.raises(RunFailure) as failure:
            step(env)
        problem = failure.value.problem
        assert (problem.what, problem.expected) == ("the environment's terminated is not a bool", "True or False")
    assert inspect_environment(lambda: Answers(terminated=flag), 20).faults


class ReplacesItsSpace(gym.Env[Any, Any]):
    """Has a new action space after each reset, and shows the newest action."""

    observation_space = gym.spaces.Box(0.0, 1e6, (1,), np.float32)

    def __init__(self) -> None:
        self.action_space = gym.spaces.Discrete(1000)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.action_space = gym.spaces.Discrete(1000)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, action, np.float32), 0.0, self.t == 5, False, {}


class MakesItsSpace(ReplacesItsSpace):
    """Makes the space whenever somebody asks for it."""

    @property
    def action_space(self) -> gym.Space[Any]:  # type: ignore[override]
        return gym.spaces.Discrete(1000)

    @action_space.setter
    def action_space(self, space: gym.Space[Any]) -> None:
        pass


@pytest.mark.parametrize("make", [ReplacesItsSpace, MakesItsSpace])
def test_check_env_repeats_an_environment_that_replaces_its_action_space(make: Any) -> None:
    found = inspect_environment(make, 60)
    assert not found.faults
    assert not found.warnings
