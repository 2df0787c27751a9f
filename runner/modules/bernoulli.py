"""Independent bits (MultiBinary)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from runner.modules.action_distribution import forbid


class Bernoulli:
    """A independent bits; `dist_inputs` are the logits (B, A) of the 1."""

    log_std_inputs: tuple[int, ...] = ()

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self.num_inputs = self.num_noise = math.prod(shape)

    def draw_noise(self, stream: np.random.Generator, leading: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Draw uniform noise (*leading, A) in [0, 1)."""
        return stream.random((*leading, self.num_noise), dtype=np.float32)

    def sample(self, dist_inputs: Tensor, noise: Tensor) -> Tensor:
        """Return (B, *shape) int8; a bit of probability 0 is never 1, since the noise is not below 0."""
        return self._bits(noise < dist_inputs.sigmoid())

    def mode(self, dist_inputs: Tensor) -> Tensor:
        """Return (B, *shape) int8."""
        return self._bits(dist_inputs > 0)

    def log_prob(self, dist_inputs: Tensor, actions: Tensor) -> Tensor:
        """Return (B,) log probabilities of (B, *shape) bits."""
        is_one = actions.reshape(dist_inputs.shape) != 0
        return F.logsigmoid(torch.where(is_one, dist_inputs, -dist_inputs)).sum(-1)

    def entropy(self, dist_inputs: Tensor) -> Tensor:
        """Return (B,) nats."""
        log_one, log_zero = F.logsigmoid(dist_inputs), F.logsigmoid(-dist_inputs)
        return -(log_one.exp() * log_one + log_zero.exp() * log_zero).sum(-1)

    def kl(self, dist_inputs: Tensor, other_inputs: Tensor) -> Tensor:
        """Return (B,) nats."""
        log_one, log_zero = F.logsigmoid(dist_inputs), F.logsigmoid(-dist_inputs)
        one = log_one.exp() * (log_one - F.logsigmoid(other_inputs))
        zero = log_zero.exp() * (log_zero - F.logsigmoid(-other_inputs))
        return (one + zero).sum(-1)

    def masked(self, dist_inputs: Tensor, mask: Tensor) -> Tensor:
        """Return (B, A) logits under a mask (B, *shape); 0 forbids the 1."""
        return forbid(dist_inputs, mask.reshape(dist_inputs.shape))

    def first_fully_forbidden(self, mask: npt.NDArray[Any]) -> int | None:
        """Return None: a bit can always be 0."""
        return None

    def _bits(self, is_one: Tensor) -> Tensor:
        return is_one.to(torch.int8).reshape(*is_one.shape[:-1], *self._shape)
