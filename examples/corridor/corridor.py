"""An environment and a connector piece outside the repository. `python -m runner` finds them by their dotted paths."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from runner.pipelines import ConnectorPiece


class Corridor(gym.Env[np.ndarray, int]):
    """Walk right to the end of a corridor: -0.1 a step, +1 at the end; cut off after 100 steps."""

    def __init__(self, length: int = 10) -> None:
        self.observation_space = gym.spaces.Box(0.0, float(length), (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._place = self._time = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._place = max(0, self._place + (1 if action == 1 else -1))
        self._time += 1
        is_there = self._place >= self._length
        return self._observe(), 1.0 if is_there else -0.1, is_there, self._time >= 100, {}

    def _observe(self) -> np.ndarray:
        return np.array([self._place], np.float32)


class ScaleRewards(ConnectorPiece):
    """Multiplies the rewards that the learner sees; episodes keep what the environment gave."""

    reads = ("rewards",)
    writes = ("rewards",)

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Scale all rows at once."""
        batch["rewards"] = batch["rewards"] * np.float32(self._factor)
        return batch
