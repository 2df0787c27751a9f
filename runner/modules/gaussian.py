"""Real-valued actions (Box of floats)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_LOG_2PI = math.log(2 * math.pi)


class DiagGaussian:
    """A independent normal variables; `dist_inputs` are means and log standard deviations (B, 2 A).

    Args:
        shape: of one action, A numbers in all.
        dtype: of the actions; everything is computed in float32.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
        self._shape = shape
        self._dtype = dtype
        self._is_plain = len(shape) == 1 and dtype == torch.float32
        self.num_noise = self._size = math.prod(shape)
        self.num_inputs = 2 * self._size
        self.log_std_inputs = tuple(range(self._size, 2 * self._size))

    def draw_noise(self, stream: np.random.Generator, leading: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Return standard normal noise (*leading, A)."""
        return stream.standard_normal((*leading, self._size), dtype=np.float32)

    def sample(self, dist_inputs: Tensor, noise: Tensor) -> Tensor:
        """Return (B, *shape) floats."""
        mean, log_std = dist_inputs.chunk(2, -1)
        return self._shaped(mean + log_std.exp() * noise)

    def mode(self, dist_inputs: Tensor) -> Tensor:
        """Return (B, *shape) floats, the means."""
        return self._shaped(dist_inputs[..., : self._size])

    def log_prob(self, dist_inputs: Tensor, actions: Tensor) -> Tensor:
        """Return (B,) log densities of (B, *shape) actions."""
        mean, log_std = dist_inputs.chunk(2, -1)
        if not self._is_plain:
            actions = actions.reshape(mean.shape).to(mean.dtype)
        z = (actions - mean) * (-log_std).exp()
        return -(0.5 * z.square() + log_std).sum(-1) - 0.5 * self._size * _LOG_2PI

    def entropy(self, dist_inputs: Tensor) -> Tensor:
        """Return (B,) nats."""
        log_std = dist_inputs[..., self._size :]
        return log_std.sum(-1) + 0.5 * self._size * (1.0 + _LOG_2PI)

    def kl(self, dist_inputs: Tensor, other_inputs: Tensor) -> Tensor:
        """Return (B,) nats."""
        mean, log_std = dist_inputs.chunk(2, -1)
        other_mean, other_log_std = other_inputs.chunk(2, -1)
        squares = (2 * log_std).exp() + (mean - other_mean).square()
        return (other_log_std - log_std + 0.5 * squares * (-2 * other_log_std).exp() - 0.5).sum(-1)

    def masked(self, dist_inputs: Tensor, mask: Any) -> Tensor:
        """Raise: `check_mask_space` refuses a mask of a Box.

        Raises:
            TypeError: always.
        """
        raise TypeError("the actions of a Box cannot be masked")

    def first_fully_forbidden(self, mask: npt.NDArray[Any]) -> int | None:
        """Return None: nothing of a Box can be forbidden."""
        return None

    def _shaped(self, flat: Tensor) -> Tensor:
        return flat if self._is_plain else flat.reshape(*flat.shape[:-1], *self._shape).to(self._dtype)
