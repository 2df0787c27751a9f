"""Environments whose episodes never end."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from runner.env_runners.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts


class Endless(gym.Env[Any, Any]):
    """Rewards 1 in every step."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.full(2, float(action), np.float32), 1.0, False, False, {}


class EndlessVector(gym.vector.VectorEnv[Any, Any, Any]):
    """Several of `Endless` that step together."""

    def __init__(self, num_envs: int) -> None:
        self.metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = Endless.observation_space, Endless.action_space
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros((self.num_envs, 2), np.float32), {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        flags = np.zeros(self.num_envs, np.bool_)
        return np.zeros((self.num_envs, 2), np.float32), np.ones(self.num_envs), flags, flags.copy(), {}


class EndlessAgents(MultiAgentEnv):
    """Two agents, which act in turn from the first step on."""

    possible_agents = ("left", "right")
    observation_spaces = dict.fromkeys(possible_agents, Endless.observation_space)
    action_spaces = dict.fromkeys(possible_agents, Endless.action_space)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[AgentDict, AgentDict]:
        self.num_steps = 0
        return {"left": np.zeros(2, np.float32)}, {}

    def step(self, actions: AgentDict) -> StepDicts:
        self.num_steps += 1
        agent = self.possible_agents[self.num_steps % 2]
        return {agent: np.zeros(2, np.float32)}, dict.fromkeys(actions, 1.0), {}, {}, {}
