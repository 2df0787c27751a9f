"""Catch: a ball falls, a paddle moves below it (Mnih et al., 2014, https://arxiv.org/abs/1406.6247, section 4.2)."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]
_ENLARGED = 16


class Catch(gym.Env[Image, Any]):
    """Images (rows, columns, 1) uint8, 255 at ball and paddle; +1 if the ball is caught at the bottom, else -1.

    Actions: 0 left, 1 stay, 2 right. The ball falls a row a step, straight down, from a random column.

    Args:
        rows, columns: size of the image.
        balls: falls in an episode; the return lies in [-balls, balls].
        render_mode: `rgb_array`, or None.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012 - gymnasium's

    def __init__(self, rows: int = 10, columns: int = 10, balls: int = 1, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._shape = (rows, columns)
        self._num_balls = balls
        self.observation_space = gym.spaces.Box(0, 255, (rows, columns, 1), np.uint8)
        self.action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Image, dict[str, Any]]:
        """Start an episode with the paddle in the middle."""
        super().reset(seed=seed)
        self._paddle = self._shape[1] // 2
        self._balls_left = self._num_balls
        self._drop()
        return self._image(), {}

    def _drop(self) -> None:
        self._row, self._column = 0, int(self.np_random.integers(self._shape[1]))

    def step(self, action: Any) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        """Move the paddle, let the ball fall a row."""
        self._paddle = int(np.clip(self._paddle + int(action) - 1, 0, self._shape[1] - 1))
        self._row += 1
        reward = 0.0
        if self._row == self._shape[0] - 1:
            reward = 1.0 if self._paddle == self._column else -1.0
            self._balls_left -= 1
            if self._balls_left:
                self._drop()
        return self._image(), reward, self._balls_left == 0, False, {}

    def render(self) -> Image:
        """Return the image enlarged, (rows * 16, columns * 16, 3) uint8."""
        return np.kron(self._image(), np.ones((_ENLARGED, _ENLARGED, 3), np.uint8))

    def _image(self) -> Image:
        image = np.zeros((*self._shape, 1), np.uint8)
        image[self._row, self._column] = 255
        image[-1, self._paddle] = 255
        return image
