"""Environments with one thing wrong each."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Walk(gym.Env[Any, Any]):
    """Walks right or left at random; ends after `length` steps. Nothing is wrong with it."""

    def __init__(self, length: int = 10) -> None:
        self.observation_space = gym.spaces.Box(-100.0, 100.0, (2,), np.float32)
        self.action_space: gym.Space[Any] = gym.spaces.Discrete(2)
        self._length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        self._place = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self._place, {}

    def step(self, action: Any) -> Any:
        self._t += 1
        self._place += np.float32(2 * int(np.sum(action)) - 1)
        return self._place, 1.0, self._t >= self._length, False, {}


class RaisesInReset(Walk):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        raise RuntimeError("no licence")


class ResetsWithoutInfo(Walk):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0]


class StepsWithFourValues(Walk):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


class RaisesInStep(Walk):
    def step(self, action: Any) -> Any:
        raise ValueError("the motor is off")


class ReturnsOtherShapes(Walk):
    def step(self, action: Any) -> Any:
        _, *others = super().step(action)
        return np.zeros(3, np.float32), *others


class LeavesItsSpace(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)


class ReturnsNaN(Walk):
    def step(self, action: Any) -> Any:
        _, *others = super().step(action)
        return np.array([0.0, np.nan], np.float32), *others


class RewardsWithArrays(Walk):
    def step(self, action: Any) -> Any:
        obs, reward, *others = super().step(action)
        return obs, np.array([reward]), *others


class RewardsWithInfinity(Walk):
    def step(self, action: Any) -> Any:
        obs, _, *others = super().step(action)
        return obs, np.inf, *others


class EndsWithNumbers(Walk):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, int(terminated), truncated, info


class NeverEnds(Walk):
    def __init__(self) -> None:
        super().__init__(10**9)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)


class DrawsFromElsewhere(Walk):
    def step(self, action: Any) -> Any:
        obs, _, *others = super().step(action)
        return obs, float(np.random.default_rng().random()), *others


class ActsWithoutBounds(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.Dict({"motor": gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)})

    def step(self, action: Any) -> Any:
        return super().step(int(action["motor"][0] > 0))


class HasNoSpace(Walk):
    def __init__(self) -> None:
        super().__init__()
        del self.action_space


class ReturnsRaggedLists(Walk):
    def step(self, action: Any) -> Any:
        _, *others = super().step(action)
        return [[1.0], [1.0, 2.0]], *others


class RewardsWithText(Walk):
    def step(self, action: Any) -> Any:
        obs, _, *others = super().step(action)
        return obs, "much", *others


class EndsWithArrays(Walk):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, np.array([terminated, terminated]), truncated, info


class RewardsWithBools(Walk):
    def step(self, action: Any) -> Any:
        obs, _, *others = super().step(action)
        return obs, True, *others


class FailsInItsSecondEpisode(Walk):
    num_episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.num_episodes += 1
        if self.num_episodes == 2:
            raise RuntimeError("only once")
        return super().reset(seed=seed)


class FailsWhenMadeThreeTimes(Walk):
    """Fails in the measurement, which is made with the third environment."""

    num_made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).num_made += 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self.num_made == 3:
            raise RuntimeError("only twice")
        return super().reset(seed=seed)
