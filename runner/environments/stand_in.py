"""Environments with random observations, used when only the spaces are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from runner.env_runners.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from runner.episodes.spaces import map_leaf_spaces, space_from_dict

_EPISODE_LEN = 4
SpaceDict = Mapping[str, Any]


class StandIn(gym.Env[Any, Any]):
    """Returns random observations and rewards of 0; an episode is truncated after four steps.

    Args:
        observation_space, action_space: see docs/reference/rllink.md.
    """

    def __init__(self, observation_space: SpaceDict, action_space: SpaceDict) -> None:
        self.observation_space = space_from_dict(observation_space, "observation_space")
        self.action_space = space_from_dict(action_space, "action_space")
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._t = 0
        return item_of(self.observation_space), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        self._t += 1
        return item_of(self.observation_space), 0.0, False, self._t == _EPISODE_LEN, {}


class MultiAgentStandIn(MultiAgentEnv):
    """Like `StandIn` for several agents, all of which act in each step.

    Args:
        agents: agent id -> {observation_space, action_space}.
    """

    def __init__(self, agents: Mapping[str, Mapping[str, SpaceDict]]) -> None:
        self._envs = {agent: StandIn(**spaces) for agent, spaces in agents.items()}
        self.possible_agents = list(agents)
        self.observation_spaces = {agent: env.observation_space for agent, env in self._envs.items()}
        self.action_spaces = {agent: env.action_space for agent, env in self._envs.items()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        """Start an episode of all agents."""
        return {agent: env.reset(seed=seed)[0] for agent, env in self._envs.items()}, {}

    def step(self, actions: AgentDict) -> StepDicts:
        """Step all agents."""
        steps = {agent: self._envs[agent].step(action) for agent, action in actions.items()}
        obs, rewards, terminateds, truncateds, infos = (
            {agent: step[place] for agent, step in steps.items()} for place in range(5)
        )
        truncateds["__all__"] = all(truncateds.values())
        return obs, rewards, terminateds, truncateds, infos


def item_of(space: gym.Space[Any]) -> Any:
    """Return a random item of a space; flags are set, so that action masks allow all actions."""
    return map_leaf_spaces(_leaf_of, space)


def _leaf_of(space: gym.Space[Any]) -> Any:
    if isinstance(space, gym.spaces.MultiBinary) or _holds_flags(space):
        return np.ones(space.shape, space.dtype)
    return space.sample()


def _holds_flags(space: gym.Space[Any]) -> bool:
    is_integer = isinstance(space, gym.spaces.Box) and space.dtype.kind in "iu"
    return is_integer and bool((space.low == 0).all() and (space.high == 1).all())  # type: ignore[attr-defined]
