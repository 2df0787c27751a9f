"""Bit flipping: turn N bits into N desired ones (Andrychowicz et al., 2017, https://arxiv.org/abs/1707.01495)."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.int8]
Observation = dict[str, Bits]
# Of pictures: colours of ones and zeros, and the width of a bit.
_DARK, _LIGHT, _PIXELS = (40, 60, 120), (235, 235, 235), 32


class BitFlipping(gym.Env[Observation, Any]):
    """Observations and goals are N bits, (N,) int8; action i flips bit i.

    The reward is -1, and 0 for the step that reaches the goal, which ends the episode; after N steps it is truncated.
    The info of the last step has `is_success`, as in gymnasium-robotics. The least number of steps is N / 2 in the
    mean, so that the best mean return is 1 - N / 2.

    Args:
        num_bits: N.
        render_mode: `rgb_array`, for pictures.

    Raises:
        ValueError: no bits.
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
        """Return 0 where bits (..., N) are the desired ones, else -1."""
        return np.where(self.compute_terminated(achieved_goal, desired_goal, info), np.float32(0.0), np.float32(-1.0))

    def compute_terminated(self, achieved_goal: Bits, desired_goal: Bits, info: Any) -> npt.NDArray[np.bool_]:
        """Return whether bits (..., N) are the desired ones."""
        is_solved: npt.NDArray[np.bool_] = (np.asarray(achieved_goal) == desired_goal).all(-1)
        return is_solved

    def render(self) -> npt.NDArray[np.uint8]:
        """Return a picture of the bits, and below them the desired ones; ones are dark."""
        cells = np.where(np.stack([self._bits, self._goal])[..., None], _DARK, _LIGHT).astype(np.uint8)
        picture = cells.repeat(_PIXELS, 0).repeat(_PIXELS, 1)
        picture[::_PIXELS], picture[:, ::_PIXELS] = 128, 128
        return picture

    def _observe(self) -> Observation:
        bits, goal = self._bits, self._goal
        return {"observation": bits.copy(), "achieved_goal": bits.copy(), "desired_goal": goal.copy()}
