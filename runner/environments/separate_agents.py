"""Agents that each have an environment of their own, in one with several agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runner.env_runners.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts


class SeparateAgents(MultiAgentEnv):
    """Agents `agent_0`, `agent_1`, ... that do not meet; the episode ends when the last one's has ended.

    Args:
        envs: the environment of each agent.
    """

    def __init__(self, envs: Sequence[gym.Env[Any, Any]]) -> None:
        self.possible_agents = [f"agent_{number}" for number in range(len(envs))]
        self._envs = dict(zip(self.possible_agents, envs, strict=True))
        self._running: list[str] = []
        self.observation_spaces = {agent: env.observation_space for agent, env in self._envs.items()}
        self.action_spaces = {agent: env.action_space for agent, env in self._envs.items()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        """Start all agents; agent k has the seed `seed + k`."""
        self._running = list(self.possible_agents)
        obs = {
            agent: env.reset(seed=None if seed is None else (seed + number) % 2**31)[0]
            for number, (agent, env) in enumerate(self._envs.items())
        }
        return obs, {}

    def step(self, actions: AgentDict) -> StepDicts:
        """Step the agents that have not ended."""
        obs, rewards, terminateds, truncateds = {}, {}, {}, {}
        for agent in self._running:
            obs[agent], rewards[agent], terminateds[agent], truncateds[agent], _ = self._envs[agent].step(
                actions[agent]
            )
        self._running = [agent for agent in self._running if not (terminateds[agent] or truncateds[agent])]
        return obs, rewards, terminateds, truncateds, {}

    def render(self) -> npt.NDArray[np.uint8]:
        """Return a picture of all environments, one above the other."""
        return np.concatenate([np.asarray(env.render()) for env in self._envs.values()])

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs.values():
            env.close()


class MultiAgentPendulum(SeparateAgents):
    """Each agent swings up a pendulum of its own, by one continuous action, in 200 steps.

    Args:
        num_agents: agents `agent_0`, `agent_1`, ...
        render_mode: gymnasium's, of each pendulum.
    """

    def __init__(self, num_agents: int = 2, render_mode: str | None = None) -> None:
        super().__init__(
            [gym.make("Pendulum-v1", disable_env_checker=True, render_mode=render_mode) for _ in range(num_agents)]
        )
