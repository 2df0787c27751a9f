"""Beta distribution of bounded actions (Chou et al., 2017, https://proceedings.mlr.press/v70/chou17a.html)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from runner.modules.action_distribution import ActionDistribution, tables_on, torch_dtype

_NUM_TRIES = 8  # of the rejection sampling, each accepted with a probability of 0.95 or more
_EPSILON = 1e-6  # smallest distance of an action from its bounds, in units of the distance between them


class Beta(ActionDistribution):
    """a = low + (high - low) x, x ~ Beta(alpha, beta), for A independent numbers.

    `dist_inputs` (B, 2 A) are converted to alpha and beta by 1 + softplus, so that each density has one maximum.

    Args:
        space: float Box with finite bounds and A numbers.

    Raises:
        TypeError: the space is not a bounded float Box.
    """

    def __init__(self, space: gym.spaces.Box) -> None:
        low, high = (np.asarray(bound, np.float32).reshape(-1) for bound in (space.low, space.high))
        if not (np.isfinite(low).all() and np.isfinite(high).all() and np.isfinite(high - low).all()):
            raise TypeError(
                f"module.action_distribution=beta needs bounded actions: got {space}; expected: a Box with finite "
                "bounds, or module.action_distribution=gaussian"
            )
        self._shape, self._dtype = space.shape, torch_dtype(space.dtype, torch.float32)
        self._size = math.prod(space.shape)
        self.num_inputs, self.num_noise = 2 * self._size, 4 * _NUM_TRIES * self._size
        self._tables = {torch.device("cpu"): _Bounds(torch.from_numpy(low), torch.from_numpy(high - low))}

    def draw_noise(self, stream: np.random.Generator, leading: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Return normal and uniform noise (*leading, M) for two gamma variables per number."""
        shape = (*leading, 2 * self._size, _NUM_TRIES)
        drawn = (stream.standard_normal(shape, np.float32), stream.random(shape, np.float32))
        return np.stack(drawn, -1).reshape(*leading, self.num_noise)

    def sample(self, dist_inputs: Tensor, noise: Tensor) -> Tensor:
        """Return (B, *shape) floats within the bounds, as the ratio of gamma variables."""
        concentrations = torch.cat(_concentrations(dist_inputs), -1)
        gammas = _gamma(concentrations, noise.reshape(*concentrations.shape, _NUM_TRIES, 2))
        first, second = gammas.chunk(2, -1)
        return self._scaled(first / (first + second))

    def mode(self, dist_inputs: Tensor) -> Tensor:
        """Return (B, *shape) floats, the maximum of the density."""
        first, second = (value + _EPSILON for value in F.softplus(dist_inputs).chunk(2, -1))
        return self._scaled(first / (first + second))

    def log_prob(self, dist_inputs: Tensor, actions: Tensor) -> Tensor:
        """Return (B,) log densities of (B, *shape) actions; an action at a bound is treated as just inside."""
        bounds = tables_on(self._tables, dist_inputs.device)
        flat = actions.reshape(*dist_inputs.shape[:-1], self._size).to(dist_inputs.dtype)
        x = ((flat - bounds.low) / bounds.width).clamp(_EPSILON, 1.0 - _EPSILON)
        alpha, beta = _concentrations(dist_inputs)
        log_density = (alpha - 1.0) * x.log() + (beta - 1.0) * (-x).log1p() - _log_beta(alpha, beta)
        return (log_density - bounds.width.log()).sum(-1)

    def entropy(self, dist_inputs: Tensor) -> Tensor:
        """Return the entropy (B,) in nats."""
        alpha, beta = _concentrations(dist_inputs)
        log_width = tables_on(self._tables, dist_inputs.device).width.log()
        of_sum = (alpha + beta - 2.0) * (alpha + beta).digamma()
        of_each = (alpha - 1.0) * alpha.digamma() + (beta - 1.0) * beta.digamma()
        return (_log_beta(alpha, beta) + of_sum - of_each + log_width).sum(-1)

    def kl(self, dist_inputs: Tensor, other_inputs: Tensor) -> Tensor:
        """Return the KL divergence (B,) in nats."""
        (alpha, beta), (other_alpha, other_beta) = _concentrations(dist_inputs), _concentrations(other_inputs)
        of_each = (alpha - other_alpha) * alpha.digamma() + (beta - other_beta) * beta.digamma()
        of_sum = (other_alpha - alpha + other_beta - beta) * (alpha + beta).digamma()
        return (_log_beta(other_alpha, other_beta) - _log_beta(alpha, beta) + of_each + of_sum).sum(-1)

    def _scaled(self, x: Tensor) -> Tensor:
        bounds = tables_on(self._tables, x.device)
        actions = bounds.low + bounds.width * x.clamp(_EPSILON, 1.0 - _EPSILON)
        return actions.reshape(*x.shape[:-1], *self._shape).to(self._dtype)


@dataclass(frozen=True)
class _Bounds:
    """Lower bounds and widths (A,)."""

    low: Tensor
    width: Tensor


def _concentrations(dist_inputs: Tensor) -> tuple[Tensor, Tensor]:
    alpha, beta = (1.0 + F.softplus(dist_inputs)).chunk(2, -1)
    return alpha, beta


def _log_beta(alpha: Tensor, beta: Tensor) -> Tensor:
    """Return the logarithm of the beta function."""
    return alpha.lgamma() + beta.lgamma() - (alpha + beta).lgamma()


def _gamma(concentration: Tensor, noise: Tensor) -> Tensor:
    """Return gamma variables by the method of Marsaglia and Tsang (2000), https://doi.org/10.1145/358407.358414.

    The first accepted try counts. All eight are rejected with a probability below 1e-10; the first one then counts.

    Args:
        concentration: (...) at least 1.
        noise: (..., tries, 2) normal and uniform variables.
    """
    d = (concentration - 1.0 / 3.0).unsqueeze(-1)
    normal, uniform = noise.unbind(-1)
    v = (1.0 + normal / (9.0 * d).sqrt()).clamp(min=1e-4).pow(3)
    is_accepted = uniform.log() < 0.5 * normal.square() + d - d * v + d * v.log()
    first = is_accepted.to(torch.uint8).argmax(-1, keepdim=True)
    return (d * v).gather(-1, first).squeeze(-1)
