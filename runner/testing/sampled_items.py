"""Random items of spaces: batches for modules, and environments for connectors."""

from __future__ import annotations

import random
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from runner.config.schemas import ModuleConfig
from runner.environments.stand_in import item_of
from runner.episodes import nested
from runner.modules import ActorCriticModule, RLModule

Space = gym.Space[Any]
OBSERVATIONS = gym.spaces.Box(-5.0, 5.0, (3,), np.float32)
DISCRETE = gym.spaces.Discrete(5)


def items_of(space: Space, *leading: int, seed: int = 0) -> Any:
    """Return random items (*leading, ...) of a space as arrays, nested like it."""
    space.seed(seed)
    items = nested.stack([item_of(space) for _ in range(int(np.prod(leading)))])
    return nested.map_leaves(lambda leaf: leaf.reshape(*leading, *leaf.shape[1:]), items)


def tensors_of(space: Space, *leading: int, seed: int = 0) -> Any:
    """Return random items (*leading, ...) of a space as tensors, nested like it."""
    return nested.map_leaves(torch.from_numpy, items_of(space, *leading, seed=seed))


def small_module(
    observation_space: Space = OBSERVATIONS, action_space: Space = DISCRETE, **options: Any
) -> ActorCriticModule:
    """Return a small network for these spaces, always with the same parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = ModuleConfig(**({"fcnet_hiddens": [8]} | options))
        return ActorCriticModule(observation_space, action_space, config)


def memory_of(module: RLModule, num_rows: int, seed: int = 0) -> Any:
    """Return a random `state_in` (num_rows, ...) of a module with memory."""
    generator = torch.Generator().manual_seed(seed)
    return nested.map_leaves(
        lambda leaf: 0.5 * torch.randn(num_rows, *leaf.shape, generator=generator), module.get_initial_state()
    )


def process_streams() -> tuple[Any, ...]:
    """Return the states of the random generators that all code of the process shares."""
    numpy_state: Any = np.random.get_state(legacy=False)
    return torch.get_rng_state(), numpy_state["state"], random.getstate()[1]


def are_close(first: Any, second: Any) -> bool:
    """Return whether nested tensors have the same shapes, and values that are equal up to rounding."""
    pairs = zip(nested.leaves(first), nested.leaves(second), strict=True)
    return all(one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in pairs)


class SampledEnvironments(gym.vector.VectorEnv[Any, Any, Any]):
    """N sub-environments that show random items of a space, with episodes of 2 to 9 steps and random rewards.

    Episodes end in turn by termination and by truncation, and are reset in the next step.
    """

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012
    _lengths = (4, 2, 9)

    def __init__(self, num_envs: int, observation_space: Space, action_space: Space) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = observation_space, action_space
        self.observation_space = gym.vector.utils.batch_space(observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(action_space, num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the first episodes."""
        self._stream = np.random.default_rng(seed)
        self.single_observation_space.seed(int(self._stream.integers(2**31)))
        self._t = np.zeros(self.num_envs, np.int64)
        self._numbers = np.arange(self.num_envs)  # of the episodes of all sub-environments
        self._is_done = np.zeros(self.num_envs, np.bool_)
        return self._observe(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take one vector step; `actions` change nothing."""
        is_reset = self._is_done
        self._numbers = self._numbers + self.num_envs * is_reset
        self._t = np.where(is_reset, 0, self._t + 1)
        self._is_done = self._t == np.take(self._lengths, self._numbers % len(self._lengths))
        is_odd = self._numbers % 2 == 1
        rewards = np.where(is_reset, 0.0, self._stream.normal(size=self.num_envs))
        infos = {"reward": rewards, "_reward": np.ones(self.num_envs, np.bool_)}
        return self._observe(), rewards, self._is_done & ~is_odd, self._is_done & is_odd, infos

    def _observe(self) -> Any:
        return nested.stack([item_of(self.single_observation_space) for _ in range(self.num_envs)])
