"""A winding corridor with a goal at its end, from which an episode may begin nearer or farther."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

Cell = tuple[int, int]
Observation = npt.NDArray[np.float32]
_MOVES: tuple[Cell, ...] = ((-1, 0), (0, 1), (1, 0), (0, -1))
_CELL = 16  # pixels
_WALL, _FLOOR, _GOAL, _AGENT = (60, 60, 60), (235, 235, 235), (70, 160, 90), (40, 90, 200)


class GoalMaze(gym.Env[Observation, Any]):
    """A grid whose only way winds through all of it; +1 at the goal, which ends the episode, and nothing before.

    Observations are the agent's cell, one-hot: (size * size,) float32. Actions: 0 up, 1 right, 2 down, 3 left; a wall
    stops the agent. `reset(options={"level": k})` begins at the (k + 1) / num_levels part of the way, seen from the
    goal; without options an episode begins where it is farthest. The last info has `is_success`.

    Args:
        size: rows and columns, odd; the way has (size + 1)² / 2 - 2 steps.
        num_levels: of `options`.
        max_steps: after which an episode is truncated; None: twice the way.
        render_mode: `rgb_array`, or None.

    Raises:
        ValueError: a size that is even or below 3, or more levels than steps.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - gymnasium's

    def __init__(
        self, size: int = 9, num_levels: int = 24, max_steps: int | None = None, render_mode: str | None = None
    ) -> None:
        if size < 3 or size % 2 == 0:
            raise ValueError(f"size must be odd and 3 or more, got {size}")
        self._size = size
        self._way = _winding_way(size)
        self._is_open = set(self._way)
        self._farthest = len(self._way) - 1
        if not 1 <= num_levels <= self._farthest:
            raise ValueError(f"num_levels must be from 1 to {self._farthest}, got {num_levels}")
        self._num_levels = num_levels
        self._max_steps = 2 * self._farthest if max_steps is None else max_steps
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0.0, 1.0, (size * size,), np.float32)
        self.action_space = gym.spaces.Discrete(4)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin as far from the goal as `options` say.

        Raises:
            ValueError: options that are not there, or a level that is not.
        """
        super().reset(seed=seed)
        self._cell = self._way[self._distance(options or {})]
        self._num_steps = 0
        return self._observe(), {}

    def _distance(self, options: Mapping[str, Any]) -> int:
        if unknown := [str(name) for name in options if name != "level"]:
            raise ValueError(f"GoalMaze has no option {', '.join(unknown)}; it has level")
        level = options.get("level", self._num_levels - 1)
        if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level < self._num_levels:
            raise ValueError(f"level must be an integer from 0 to {self._num_levels - 1}, got {level!r}")
        return -(-self._farthest * (level + 1) // self._num_levels)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Move a cell, unless a wall is there."""
        down, right = _MOVES[int(action)]
        target = self._cell[0] + down, self._cell[1] + right
        self._cell = target if target in self._is_open else self._cell
        self._num_steps += 1
        is_success = self._cell == self._way[0]
        is_truncated = self._num_steps >= self._max_steps and not is_success
        info = {"is_success": is_success} if is_success or is_truncated else {}
        return self._observe(), float(is_success), is_success, is_truncated, info

    def render(self) -> npt.NDArray[np.uint8]:
        """Return a picture, (size * 16, size * 16, 3) uint8."""
        picture = np.full((self._size, self._size, 3), _WALL, np.uint8)
        for cell in self._way:
            picture[cell] = _FLOOR
        picture[self._way[0]] = _GOAL
        picture[self._cell] = _AGENT
        return np.kron(picture, np.ones((_CELL, _CELL, 1), np.uint8))

    def get_state(self) -> dict[str, Any]:
        """Return what the next step depends on."""
        return {"cell": list(self._cell), "num_steps": self._num_steps}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        row, column = state["cell"]
        self._cell, self._num_steps = (int(row), int(column)), int(state["num_steps"])

    def _observe(self) -> Observation:
        obs = np.zeros(self._size * self._size, np.float32)
        obs[self._cell[0] * self._size + self._cell[1]] = 1.0
        return obs


def _winding_way(size: int) -> list[Cell]:
    """Return the cells of the way from the goal on: along every other row, and down at its end."""
    way: list[Cell] = []
    for row in range(size):
        leads_right = row % 4 == 0
        if row % 2 == 0:
            way += [(row, column) for column in (range(size) if leads_right else range(size - 1, -1, -1))]
        else:
            way.append((row, size - 1 if row % 4 == 1 else 0))
    return way
