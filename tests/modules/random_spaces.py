"""Environments of any spaces: random observations and masks, and a complaint about every action that is not allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from runner.env_runners.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from runner.episodes import nested
from tests.modules.test_action_masks import ACTIONS, MASKS, is_allowed, random_mask

Space = gym.Space[Any]
_BOX = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
OBS_SPACES: dict[str, Space] = {
    "box": _BOX,
    "matrix": gym.spaces.Box(-2.0, 2.0, (2, 3), np.float64),
    "image": gym.spaces.Box(0, 255, (10, 12, 3), np.uint8),
    "discrete": gym.spaces.Discrete(4, start=-2),
    "multi": gym.spaces.MultiDiscrete([[2, 3], [4, 1]], start=[[1, 0], [-2, 5]]),
    "bits": gym.spaces.MultiBinary((2, 2)),
    "dict": gym.spaces.Dict({"z": _BOX, "a": gym.spaces.Tuple((gym.spaces.Discrete(3), gym.spaces.MultiBinary(3)))}),
    "tuple": gym.spaces.Tuple(
        (gym.spaces.Box(0, 9, (), np.int32), gym.spaces.Dict({"m": gym.spaces.MultiDiscrete([2, 3])}))
    ),
}
ACTION_SPACES: dict[str, Space] = ACTIONS | {
    "matrix": gym.spaces.MultiDiscrete([[2, 5], [1, 3]], start=[[1, -2], [0, 7]]),
    "reals": gym.spaces.Box(np.array([[-3, 0, 1]], np.float32), np.array([[-1, 4, 9]], np.float32)),
    "unbounded": gym.spaces.Box(-np.inf, np.inf, (2,), np.float64),
    "integers": gym.spaces.Box(np.array([0, -3]), np.array([9, 3]), dtype=np.int32),
    "nested": gym.spaces.Dict(
        {
            "z": gym.spaces.Discrete(3, start=-1),
            "a": gym.spaces.Tuple(
                (gym.spaces.Box(2.0, 5.0, (2, 1)), gym.spaces.Dict({"b": gym.spaces.MultiBinary(3)}))
            ),
        }
    ),
}


class RandomSpaces(gym.Env[Any, Any]):
    """Episodes of 1 to 9 steps; each info holds the action that led to it.

    With masks the observation is {"seen": ..., "mask": ...}; the mask of an episode's last observation forbids all.

    Args:
        obs: key of `OBS_SPACES`.
        actions: key of `ACTION_SPACES`.
        mask: number of one of the action space's `MASKS`; None: no masks.
        forbid_all_in: the mask of this observation of every episode forbids all.

    Raises:
        ValueError: (from `step`) an action outside of the space, or a forbidden one.
    """

    def __init__(
        self, obs: str = "box", actions: str = "discrete", mask: int | None = None, forbid_all_in: int | None = None
    ) -> None:
        self._seen, self.action_space = OBS_SPACES[obs], ACTION_SPACES[actions]
        self._mask_space = None if mask is None else MASKS[actions][mask]
        self._forbid_all_in = forbid_all_in
        self.observation_space = self._seen
        if self._mask_space is not None:
            self.observation_space = gym.spaces.Dict({"seen": self._seen, "mask": self._mask_space})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._seen.seed(int(self.np_random.integers(2**31)))
        self._t, self._length = 0, int(self.np_random.integers(1, 10))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        if self._mask_space is not None:
            row = nested.map_leaves(lambda leaf: np.asarray(leaf)[None], action)
            if not is_allowed(self.action_space, self._mask, row).all():
                raise ValueError(f"{action!r} is forbidden by {self._mask!r}")
        self._t += 1
        is_over = self._t == self._length
        return self._observe(), 1.0, is_over and self._length % 2 == 0, is_over, {"action": action}

    def _observe(self) -> Any:
        seen = self._seen.sample()
        if self._mask_space is None:
            return seen
        self._mask = random_mask(self.action_space, self._mask_space, self.np_random, 1)
        if self._t in (self._length, self._forbid_all_in):
            self._mask = nested.map_leaves(np.zeros_like, self._mask)
        return {"seen": seen, "mask": nested.map_leaves(lambda leaf: leaf[0], self._mask)}


class MaskedAgents(MultiAgentEnv):
    """Two agents with masks, each in a `RandomSpaces` of its own; the episode ends with the longer one's.

    Args:
        actions: keys of `ACTION_SPACES`, one for each agent.
        forbid_all_in: as for `RandomSpaces`, for the second one.
    """

    def __init__(self, actions: Mapping[str, str], forbid_all_in: int | None = None) -> None:
        self.possible_agents = list(actions)
        last = self.possible_agents[-1]
        self._envs = {
            agent: RandomSpaces("dict", own, 0, forbid_all_in if agent == last else None)
            for agent, own in actions.items()
        }
        self.observation_spaces = {agent: env.observation_space for agent, env in self._envs.items()}
        self.action_spaces = {agent: env.action_space for agent, env in self._envs.items()}
        self._running: list[str] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        self._running = list(self.possible_agents)
        return {agent: env.reset(seed=seed)[0] for agent, env in self._envs.items()}, {}

    def step(self, actions: AgentDict) -> StepDicts:
        results = {agent: self._envs[agent].step(actions[agent]) for agent in self._running}
        obs, rewards, terminateds, truncateds, _ = (
            {agent: result[part] for agent, result in results.items()} for part in range(5)
        )
        self._running = [agent for agent in self._running if not (terminateds[agent] or truncateds[agent])]
        return obs, rewards, terminateds, truncateds, {}
