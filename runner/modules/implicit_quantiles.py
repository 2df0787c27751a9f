"""Implicit quantile networks, IQN (Dabney et al., 2018, https://arxiv.org/abs/1806.06923)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runner.modules.value_distributions import quantile_midpoints

_NUM_COSINES = 64  # n in eq. 4


class ImplicitQuantileHead(nn.Module):
    """Quantiles of the return at N fractions tau: head(features * relu(W cos(pi i tau) + b)), i = 0 .. 63; eq. 4.

    Args:
        num_inputs: F, width of the features.
        make_head: makes the head from features (B, N, F) to a value for each action (B, N, A).
        num_quantiles: N.

    Attributes:
        num_noise: N, the fractions in a row of noise.
    """

    def __init__(self, num_inputs: int, make_head: Callable[[], nn.Module], num_quantiles: int) -> None:
        super().__init__()
        self.num_noise = num_quantiles
        self.embedding = nn.Linear(_NUM_COSINES, num_inputs)
        self.head: Any = make_head()

    def forward(self, features: Tensor) -> Tensor:
        """Return (..., A * N) quantiles at (i + 1/2) / N of features (..., F)."""
        return self.forward_with_noise(features, quantile_midpoints(features.new_empty(self.num_noise)))

    def forward_with_noise(self, features: Tensor, taus: Tensor) -> Tensor:
        """Return (..., A * N) quantiles at taus (..., N), or (N,) for all rows, of features (..., F)."""
        multiples = math.pi * torch.arange(_NUM_COSINES, dtype=taus.dtype, device=taus.device)
        embedded = F.relu(self.embedding(torch.cos(taus.unsqueeze(-1) * multiples)))  # (..., N, F)
        quantiles: Tensor = self.head.forward(features.unsqueeze(-2) * embedded)  # (..., N, A)
        return quantiles.transpose(-1, -2).flatten(-2)
