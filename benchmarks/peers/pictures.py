"""An environment of images without computing cost, and a learner connector that waits like a GPU would compute."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np

from runner.pipelines import LearnerConnector

_SHAPE = (84, 84, 4)


class Pictures(gym.Env[Any, Any]):
    """Random images of the size of Atari's stacked frames, in turn; an episode has 100 steps."""

    observation_space = gym.spaces.Box(0, 255, _SHAPE, np.uint8)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, render_mode: str | None = None) -> None:
        self._pictures = np.random.default_rng(0).integers(0, 255, (16, *_SHAPE), np.uint8)
        self._t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        super().reset(seed=seed)
        self._t = 0
        return self._pictures[0], {}

    def step(self, action: Any) -> Any:
        """Return the next picture."""
        self._t += 1
        return self._pictures[self._t % len(self._pictures)], 1.0, False, self._t == 100, {}


class Waiting(LearnerConnector):
    """Sleeps `seconds` in each update."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, *, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Return the batch after the sleep."""
        time.sleep(self._seconds)
        return batch
