"""A custom environment: a maze with fixed walls and goal, and a start that is drawn for each episode."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

WALLS = (
    "..#.....",
    "..#.###.",
    "....#...",
    ".####.#.",
    "......#.",
    ".######.",
    "......#.",
    "####....",
)
GOAL = (0, 3)
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left
WALL, FREE, GOAL_COLOUR, WALKER = (60, 60, 70), (240, 240, 235), (70, 160, 90), (200, 80, 60)


class Maze(gym.Env[np.ndarray, np.int64]):
    """Walk to the goal: -0.02 per step, +1 at the goal, truncated after `max_steps` steps.

    An observation is the walker's (row, column), scaled to [0, 1], and for each move whether it is free. In the info of
    each step, `is_success` is true if the goal was reached.
    """

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, max_steps: int = 100, render_mode: str | None = None) -> None:
        self.observation_space = gym.spaces.Box(0.0, 1.0, (2 + len(MOVES),), np.float32)
        self.action_space = gym.spaces.Discrete(len(MOVES))
        self.render_mode = render_mode
        self._max_steps = max_steps
        self._free = np.array([[cell == "." for cell in row] for row in WALLS])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start at a free place other than the goal, drawn from `np_random`, which `seed` sets."""
        super().reset(seed=seed)
        places = [tuple(place) for place in np.argwhere(self._free).tolist() if tuple(place) != GOAL]
        self._place = places[self.np_random.integers(len(places))]
        self._time = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Walk one place; walls block the move."""
        if self._is_free(int(action)):
            self._place = self._beside(int(action))
        self._time += 1
        is_there = self._place == GOAL
        reward = 1.0 if is_there else -0.02
        return self._observe(), reward, is_there, self._time >= self._max_steps, {"is_success": is_there}

    def render(self) -> np.ndarray:
        """Draw the maze: (H, W, 3) uint8, 24 pixels per place."""
        picture = np.where(self._free[..., None], FREE, WALL).astype(np.uint8)
        picture[GOAL], picture[self._place] = GOAL_COLOUR, WALKER
        return picture.repeat(24, 0).repeat(24, 1)

    def _beside(self, move: int) -> tuple[int, int]:
        return self._place[0] + MOVES[move][0], self._place[1] + MOVES[move][1]

    def _is_free(self, move: int) -> bool:
        row, column = self._beside(move)
        return 0 <= row < len(WALLS) and 0 <= column < len(WALLS) and bool(self._free[row, column])

    def _observe(self) -> np.ndarray:
        place = np.array(self._place, np.float32) / (len(WALLS) - 1)
        return np.append(place, [self._is_free(move) for move in range(len(MOVES))]).astype(np.float32)
