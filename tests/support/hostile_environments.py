"""Environments that behave as user code does: they change what they are given, and state of the process.

`Hostile` is a guessing game: episodes of twenty steps whose reward is 1 for one action.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch

LENGTH = 20
_VECTOR = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


class Hostile(gym.Env[Any, Any]):
    """Well-behaved base class: subclasses override what they do wrong."""

    observation_space: gym.Space[Any] = _VECTOR
    action_space: gym.Space[Any] = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        self._noise = np.random.default_rng(self.np_random.integers(2**32))
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._t += 1
        reward = self.reward(action)
        return self.observe(), reward, False, self._t >= LENGTH, {}

    def observe(self) -> Any:
        """Return the next observation."""
        return self._noise.uniform(-1.0, 1.0, 2).astype(np.float32)

    def reward(self, action: Any) -> Any:
        """Return the reward of an action."""
        return float(np.all(np.asarray(action) == 2))


class _InPlace(Hostile):
    """Overwrites its action."""

    def reward(self, action: Any) -> Any:
        reward = float(np.mean(np.asarray(action) == self.best))
        action[...] = self.wrong
        return reward

    best: ClassVar[Any] = 2
    wrong: ClassVar[Any] = 0


class InPlaceMultiDiscrete(_InPlace):
    action_space = gym.spaces.MultiDiscrete([3, 3])


class InPlaceMultiBinary(_InPlace):
    action_space = gym.spaces.MultiBinary(3)
    best = 1


class InPlaceIntegerBox(_InPlace):
    action_space = gym.spaces.Box(0, 2, (2,), np.int64)


class InPlaceFloatBox(_InPlace):
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    wrong = 0.5


class InPlaceObservation(Hostile):
    """Returns the same array from each step and overwrites it."""

    def __init__(self) -> None:
        self._shown = np.zeros(2, np.float32)

    def observe(self) -> Any:
        self._shown[...] = self._noise.uniform(-1.0, 1.0, 2)
        return self._shown


class ChangesFolder(Hostile):
    """Changes the working directory when it is made."""

    def __init__(self, folder: str) -> None:
        target = Path(tempfile.gettempdir()) / folder
        target.mkdir(exist_ok=True)
        os.chdir(target)


class TurnsGradientsOff(Hostile):
    def __init__(self) -> None:
        torch.set_grad_enabled(False)


class TurnsGradientsOffInSteps(Hostile):
    def reward(self, action: Any) -> Any:
        torch.set_grad_enabled(False)
        return super().reward(action)


class DefaultsToFloat64(Hostile):
    def __init__(self) -> None:
        torch.set_default_dtype(torch.float64)


class DefaultsToFloat64InSteps(Hostile):
    def reward(self, action: Any) -> Any:
        torch.set_default_dtype(torch.float64)
        return super().reward(action)


class TrainsANetwork(Hostile):
    """Has a network that it trains, in `reset` and in `step`."""

    def __init__(self) -> None:
        self.network = torch.nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01)

    def observe(self) -> Any:
        seen = super().observe()
        self.optimizer.zero_grad()
        self.network(torch.as_tensor(seen, dtype=self.network.weight.dtype)).sum().backward()
        self.optimizer.step()
        return seen


class SeedsEverything(Hostile):
    """Seeds the global generators in each episode, as many environments of users do."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        np.random.seed(0)
        torch.manual_seed(0)
        return super().reset(seed=seed, options=options)


class RaisesOnClose(Hostile):
    def close(self) -> None:
        raise OSError("the simulator is gone already")


class EndlessEpisodes(Hostile):
    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return self.observe(), self.reward(action), False, False, {}


class KeysThatAreNotStrings(Hostile):
    """Has integers and `$` as keys in its configuration, its observations and its infos."""

    observation_space = gym.spaces.Dict({"0": _VECTOR, "$x": gym.spaces.Discrete(3)})

    def __init__(self, names: Mapping[Any, Any]) -> None:
        if set(names) != {0, "$left"}:
            raise ValueError(f"got {names}")

    def observe(self) -> Any:
        return {"0": super().observe(), "$x": int(self._noise.integers(3))}


class IntegerKeys(Hostile):
    observation_space = gym.spaces.Dict({0: _VECTOR, 1: gym.spaces.Discrete(3)})  # type: ignore[dict-item]

    def observe(self) -> Any:
        return {0: super().observe(), 1: int(self._noise.integers(3))}


class OddTypes(Hostile):
    """Returns rewards and flags of other types than float and bool.

    Args:
        reward: what makes a reward out of a number.
        flag: what makes a flag out of a bool.
    """

    REWARDS: ClassVar[Mapping[str, Any]] = {
        "int": int,
        "bool": bool,
        "float32": np.float32,
        "float64": np.float64,
        "0-d": np.asarray,
        "one element": lambda value: np.asarray([value]),
        "tensor": torch.as_tensor,
    }
    FLAGS: ClassVar[Mapping[str, Any]] = {
        "int": int,
        "np.bool": np.bool_,
        "0-d": np.asarray,
        "one element": lambda value: np.asarray([value]),
    }

    def __init__(self, reward: str = "float64", flag: str = "np.bool") -> None:
        self._reward, self._flag = self.REWARDS[reward], self.FLAGS[flag]

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        seen, reward, terminated, truncated, info = super().step(action)
        return seen, self._reward(reward), self._flag(terminated), self._flag(truncated), info


class Images(Hostile):
    """Shows random images.

    Args:
        layout: a name of `LAYOUTS`.
    """

    LAYOUTS: ClassVar[Mapping[str, gym.spaces.Box]] = {
        "height, width, channels": gym.spaces.Box(0, 255, (42, 42, 3), np.uint8),
        "channels, height, width": gym.spaces.Box(0, 255, (3, 42, 42), np.uint8),
        "height, width": gym.spaces.Box(0, 255, (42, 42), np.uint8),
        "stacked grey frames": gym.spaces.Box(0, 255, (4, 84, 84), np.uint8),
        "stacked colour frames": gym.spaces.Box(0, 255, (4, 42, 42, 3), np.uint8),
        "float to 255": gym.spaces.Box(0.0, 255.0, (42, 42, 3), np.float32),
        "float to 1": gym.spaces.Box(0.0, 1.0, (42, 42, 3), np.float32),
        "small": gym.spaces.Box(0, 255, (7, 7, 3), np.uint8),
        "small, no bounds": gym.spaces.Box(-np.inf, np.inf, (7, 7, 3), np.float32),
    }

    def __init__(self, layout: str) -> None:
        self.observation_space = self.LAYOUTS[layout]

    def observe(self) -> Any:
        space = self.observation_space
        high = 255 if space.high.max() > 1 else 1
        return (self._noise.random(space.shape) * high).astype(space.dtype)


class ReplacesActionSpace(Hostile):
    """Makes a new action space in each `reset`, as highway-env does."""

    def __init__(self) -> None:
        self.action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.action_space = gym.spaces.Discrete(3)
        return super().reset(seed=seed, options=options)
