"""Environments as users of PettingZoo write them: agents with numbers for ids, together or in turns."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from runner.env_runners.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts


class Guesses(ParallelEnv[int, Any, Any]):
    """Agents 0 and 1 see a random bit each, and are rewarded for repeating it; five steps.

    Args:
        ids: of the agents.
    """

    def __init__(self, ids: Any = (0, 1)) -> None:
        self.possible_agents = list(ids)
        self.agents: list[Any] = []

    def observation_space(self, agent: Any) -> gym.Space[Any]:
        return gym.spaces.Box(0, 1, (1,), np.float32)

    def action_space(self, agent: Any) -> gym.Space[Any]:
        return gym.spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._rng = np.random.default_rng(seed)
        self._t, self.agents = 0, list(self.possible_agents)
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[Any, Any]) -> Any:
        rewards = {agent: float(action == self._bits[agent][0]) for agent, action in actions.items()}
        self._t += 1
        agents, is_over = self.agents, self._t == 5
        obs = self._observe()
        if is_over:
            self.agents = []
        ends, truncated = (dict.fromkeys(agents, flag) for flag in (is_over, False))
        return obs, rewards, ends, truncated, {agent: {} for agent in agents}

    def _observe(self) -> dict[Any, Any]:
        self._bits = {agent: self._rng.integers(0, 2, 1).astype(np.float32) for agent in self.possible_agents}
        return dict(self._bits)


class WithDicts(Guesses):
    """Has no methods for spaces, but the dicts, and no metadata."""

    observation_spaces = {agent: gym.spaces.Box(0, 1, (1,), np.float32) for agent in (0, 1)}  # noqa: RUF012
    action_spaces = {agent: gym.spaces.Discrete(2) for agent in (0, 1)}  # noqa: RUF012
    observation_space = ParallelEnv.observation_space
    action_space = ParallelEnv.action_space


class Turns(AECEnv[int, Any, Any]):
    """Agents 0 and 1 in turns: see a random bit, are rewarded for repeating it; six turns."""

    metadata = {"name": "turns"}  # noqa: RUF012
    possible_agents = [0, 1]  # noqa: RUF012

    def observation_space(self, agent: int) -> gym.Space[Any]:
        return gym.spaces.Box(0, 1, (1,), np.float32)

    def action_space(self, agent: int) -> gym.Space[Any]:
        return gym.spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self._rng = np.random.default_rng(seed)
        self.agents, self._t, self.agent_selection = [0, 1], 0, 0
        self.rewards = self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.infos: dict[int, dict[str, Any]] = {agent: {} for agent in self.agents}
        self._draw()

    def _draw(self) -> None:
        self._bit = self._rng.integers(0, 2, 1).astype(np.float32)

    def observe(self, agent: int) -> Any:
        return self._bit

    def step(self, action: Any) -> None:
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        agent = self.agent_selection
        self.rewards = {one: float(one == agent and action == self._bit[0]) for one in self.agents}
        self._t += 1
        if self._t == 6:
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = 1 - agent
        self._draw()


class Leaves(Turns):
    """Agents 0, 1 and 2 in turns. Agent 0 terminates in its second turn, and is listed until the next one."""

    possible_agents = [0, 1, 2]  # noqa: RUF012

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.infos = {agent: {} for agent in self.possible_agents}
        self.rewards = self._cumulative_rewards = dict.fromkeys(self.possible_agents, 0.0)
        self.truncations = dict.fromkeys(self.possible_agents, False)
        self._bit = np.zeros(1, np.float32)
        self.set_state({"t": 0, "agents": [0, 1, 2], "selected": 0, "has_ended": False})

    def get_state(self) -> dict[str, Any]:
        agents, has_ended = list(self.agents), self.terminations[0]
        return {"t": self._t, "agents": agents, "selected": self.agent_selection, "has_ended": has_ended}

    def set_state(self, state: dict[str, Any]) -> None:
        self._t, self.agents, self.agent_selection = state["t"], list(state["agents"]), state["selected"]
        self.terminations = {0: state["has_ended"], 1: False, 2: False}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        place = self.agents.index(agent) + 1
        if self.terminations[agent]:
            self.agents.remove(agent)
            place -= 1
        self._t += 1
        self.terminations[0] = self._t > 3
        self.agent_selection = self.agents[place % len(self.agents)]


class NumberedAgents(MultiAgentEnv):
    """The same as `Guesses`, of runner's own base class."""

    def __init__(self) -> None:
        self._env = Guesses()
        self.possible_agents = self._env.possible_agents
        self.observation_spaces = {agent: self._env.observation_space(agent) for agent in self.possible_agents}
        self.action_spaces = {agent: self._env.action_space(agent) for agent in self.possible_agents}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        return self._env.reset(seed, options)

    def step(self, actions: AgentDict) -> StepDicts:
        return self._env.step(actions)


def make_parallel(num_agents: int = 2) -> ParallelEnv[Any, Any, Any]:
    return Guesses(range(num_agents))


def make_turns() -> AECEnv[Any, Any, Any]:
    return OrderEnforcingWrapper(Turns())


class NoAgents(Guesses):
    def __init__(self) -> None:
        pass
