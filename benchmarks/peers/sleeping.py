"""CartPole with steps that take time without CPU work, like an external simulator, so that two cores can run many."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv


class SleepingCartPole(gym.Wrapper[Any, Any, Any, Any]):
    """Sleeps `seconds` per step, or a lognormal time with this mean and this `sigma`."""

    def __init__(self, seconds: float = 0.005, sigma: float = 0.0, render_mode: str | None = None) -> None:
        super().__init__(gym.make("CartPole-v1", render_mode=render_mode))
        self._seconds, self._sigma = seconds, sigma
        self._stream = np.random.default_rng()

    def step(self, action: Any) -> Any:
        """Step after the sleep."""
        factor = self._stream.lognormal(-(self._sigma**2) / 2, self._sigma) if self._sigma else 1.0
        time.sleep(self._seconds * factor)
        return self.env.step(action)


class SleepingCartPoles(CartPoleVectorEnv):
    """Steps all sub-environments together and sleeps `seconds` once, like a batched simulator."""

    def __init__(self, num_envs: int = 1, seconds: float = 0.002, render_mode: str | None = None) -> None:
        super().__init__(num_envs=num_envs, render_mode=render_mode)
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        """Step after the sleep."""
        time.sleep(self._seconds)
        return super().step(action)
