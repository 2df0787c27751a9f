"""Small tasks of one agent with a known solution: catch a ball, flip bits, walk through a maze."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runner.state import DeclaredState

Image = npt.NDArray[np.uint8]
_ENLARGED = 16


class Catch(gym.Env[Image, Any]):
    """Images (rows, columns, 1) uint8, 255 at ball and paddle; +1 if the ball is caught at the bottom, else -1.

    Actions: 0 left, 1 stay, 2 right. The ball falls one row per step, straight down, from a random column.

    Args:
        rows, columns: size of the image.
        balls: number of balls in an episode; the return is within [-balls, balls].
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
        """Move the paddle, and drop the ball by one row."""
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


Bits = npt.NDArray[np.int8]
Observation = dict[str, Bits]
# For pictures: colours of ones and zeros, and the width of a bit.
_DARK, _LIGHT, _PIXELS = (40, 60, 120), (235, 235, 235), 32


class BitFlipping(gym.Env[Observation, Any]):
    """Observations and goals are N bits, (N,) int8; action i flips bit i.

    The reward is -1, and 0 for the step that reaches the goal, which ends the episode. After N steps the episode is
    truncated. The info of the last step has `is_success`, as in gymnasium-robotics. On average N / 2 steps are needed,
    so the best mean return is 1 - N / 2.

    Args:
        num_bits: N.
        render_mode: `rgb_array`, for images.

    Raises:
        ValueError: N is below 1.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012 - gymnasium's

    def __init__(self, num_bits: int = 15, render_mode: str | None = None) -> None:
        if num_bits < 1:
            raise ValueError(f"num_bits must be 1 or more, got {num_bits}")
        bits = gym.spaces.MultiBinary(num_bits)
        self._num_bits, self.render_mode = num_bits, render_mode
        self.observation_space: gym.spaces.Dict = gym.spaces.Dict(  # type: ignore[assignment]
            dict.fromkeys(("observation", "achieved_goal", "desired_goal"), bits)
        )
        self.action_space = gym.spaces.Discrete(num_bits)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draw bits and desired bits that differ."""
        super().reset(seed=seed)
        self._num_steps = 0
        self._bits = self.np_random.integers(2, size=self._num_bits, dtype=np.int8)
        self._goal = self._bits
        while np.array_equal(self._goal, self._bits):
            self._goal = self.np_random.integers(2, size=self._num_bits, dtype=np.int8)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Flip a bit."""
        self._bits[int(action)] ^= 1
        self._num_steps += 1
        is_solved = bool(self.compute_terminated(self._bits, self._goal, {}))
        is_truncated = self._num_steps == self._num_bits and not is_solved
        reward = float(self.compute_reward(self._bits, self._goal, {}))
        info = {"is_success": is_solved} if is_solved or is_truncated else {}
        return self._observe(), reward, is_solved, is_truncated, info

    def compute_reward(self, achieved_goal: Bits, desired_goal: Bits, info: Any) -> npt.NDArray[np.float32]:
        """Return 0 if bits (..., N) equal the desired ones, else -1."""
        return np.where(self.compute_terminated(achieved_goal, desired_goal, info), np.float32(0.0), np.float32(-1.0))

    def compute_terminated(self, achieved_goal: Bits, desired_goal: Bits, info: Any) -> npt.NDArray[np.bool_]:
        """Return whether bits (..., N) equal the desired ones."""
        is_solved: npt.NDArray[np.bool_] = (np.asarray(achieved_goal) == desired_goal).all(-1)
        return is_solved

    def render(self) -> npt.NDArray[np.uint8]:
        """Return an image of the bits, with the desired bits below; ones are dark."""
        cells = np.where(np.stack([self._bits, self._goal])[..., None], _DARK, _LIGHT).astype(np.uint8)
        picture = cells.repeat(_PIXELS, 0).repeat(_PIXELS, 1)
        picture[::_PIXELS], picture[:, ::_PIXELS] = 128, 128
        return picture

    def _observe(self) -> Observation:
        bits, goal = self._bits, self._goal
        return {"observation": bits.copy(), "achieved_goal": bits.copy(), "desired_goal": goal.copy()}


Cell = tuple[int, int]
MazeObservation = npt.NDArray[np.float32]
_MOVES: tuple[Cell, ...] = ((-1, 0), (0, 1), (1, 0), (0, -1))
_CELL = 16  # pixels
_WALL, _FLOOR, _GOAL, _AGENT = (60, 60, 60), (235, 235, 235), (70, 160, 90), (40, 90, 200)


class GoalMaze(DeclaredState, gym.Env[MazeObservation, Any]):
    """A grid with a single path through all of its cells; +1 at the goal, which ends the episode, and 0 before.

    Observations are the agent's cell, one-hot: (size * size,) float32. Actions: 0 up, 1 right, 2 down, 3 left; a wall
    stops the agent. `reset(options={"level": k})` starts at the fraction (k + 1) / num_levels of the path, counted from
    the goal; without options an episode starts at the far end. The last info has `is_success`.

    Args:
        size: rows and columns, odd; the path has (size + 1)² / 2 - 2 steps.
        num_levels: number of levels in `options`.
        max_steps: steps after which an episode is truncated; None: twice the length of the path.
        render_mode: `rgb_array`, or None.

    Raises:
        ValueError: the size is even or below 3, or there are more levels than steps.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - gymnasium's
    state = ("_cell", "_num_steps")

    def __init__(
        self, size: int = 9, num_levels: int = 24, max_steps: int | None = None, render_mode: str | None = None
    ) -> None:
        if size < 3 or size % 2 == 0:
            raise ValueError(f"size must be odd and 3 or more, got {size}")
        self._size = size
        self._way = _winding_way(size)
        self._is_open = set(self._way)
        self._farthest = len(self._way) - 1
        self._cell, self._num_steps = self._way[-1], 0
        if not 1 <= num_levels <= self._farthest:
            raise ValueError(f"num_levels must be from 1 to {self._farthest}, got {num_levels}")
        self._num_levels = num_levels
        self._max_steps = 2 * self._farthest if max_steps is None else max_steps
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0.0, 1.0, (size * size,), np.float32)
        self.action_space = gym.spaces.Discrete(4)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[MazeObservation, dict[str, Any]]:
        """Start at the distance from the goal that `options` set.

        Raises:
            ValueError: an option or a level is unknown.
        """
        super().reset(seed=seed)
        self._cell = self._way[self._distance(options or {})]
        self._num_steps = 0
        return self._observe(), {}

    def _distance(self, options: Mapping[str, Any]) -> int:
        if unknown := [str(name) for name in options if name != "level"]:
            raise ValueError(f"{', '.join(unknown)} is not a known option of GoalMaze; expected level")
        level = options.get("level", self._num_levels - 1)
        if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level < self._num_levels:
            raise ValueError(f"level must be an integer from 0 to {self._num_levels - 1}, got {level!r}")
        return -(-self._farthest * (level + 1) // self._num_levels)

    def step(self, action: Any) -> tuple[MazeObservation, float, bool, bool, dict[str, Any]]:
        """Move by one cell, unless there is a wall."""
        down, right = _MOVES[int(action)]
        target = self._cell[0] + down, self._cell[1] + right
        self._cell = target if target in self._is_open else self._cell
        self._num_steps += 1
        is_success = self._cell == self._way[0]
        is_truncated = self._num_steps >= self._max_steps and not is_success
        info = {"is_success": is_success} if is_success or is_truncated else {}
        return self._observe(), float(is_success), is_success, is_truncated, info

    def render(self) -> npt.NDArray[np.uint8]:
        """Return an image, (size * 16, size * 16, 3) uint8."""
        picture = np.full((self._size, self._size, 3), _WALL, np.uint8)
        for cell in self._way:
            picture[cell] = _FLOOR
        picture[self._way[0]] = _GOAL
        picture[self._cell] = _AGENT
        return np.kron(picture, np.ones((_CELL, _CELL, 1), np.uint8))

    def _observe(self) -> MazeObservation:
        obs = np.zeros(self._size * self._size, np.float32)
        obs[self._cell[0] * self._size + self._cell[1]] = 1.0
        return obs


def _winding_way(size: int) -> list[Cell]:
    """Return the cells of the path, from the goal on: along every other row, and down at its end."""
    way: list[Cell] = []
    for row in range(size):
        leads_right = row % 4 == 0
        if row % 2 == 0:
            way += [(row, column) for column in (range(size) if leads_right else range(size - 1, -1, -1))]
        else:
            way.append((row, size - 1 if row % 4 == 1 else 0))
    return way
