"""MinAtar's games as Gymnasium environments, for systems that cannot import runner; equal to runner's `MinAtar`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from minatar import Environment


class MinAtar(gymnasium.Env):
    """Images (10, 10, C) uint8, 255 where the object of a channel is. Episodes depend only on their seed."""

    def __init__(self, game: str) -> None:
        self._game = Environment(game, sticky_action_prob=0.1, difficulty_ramping=True)
        self._actions = self._game.minimal_action_set()
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))
        self.observation_space = gymnasium.spaces.Box(0, 255, tuple(self._game.state_shape()), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._game.seed(int(self.np_random.integers(2**31)))
        self._game.last_action = 0
        self._game.reset()
        return self._image(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward, is_over = self._game.act(self._actions[int(action)])
        return self._image(), float(reward), bool(is_over), False, {}

    def _image(self) -> np.ndarray:
        return self._game.state().astype(np.uint8) * np.uint8(255)
