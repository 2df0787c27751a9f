"""Real-valued actions: normal variables, or their tanh for bounded actions (Haarnoja et al., 2018, appendix C)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from runner.modules.action_distribution import ActionDistribution, tables_on, torch_dtype

_LOG_2PI = math.log(2 * math.pi)


class DiagGaussian(ActionDistribution):
    """A independent normal variables; `dist_inputs` are means and log standard deviations (B, 2 A).

    Args:
        shape: shape of one action with A numbers.
        dtype: dtype of the actions; all computations use float32.
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
        """Return the entropy (B,) in nats."""
        log_std = dist_inputs[..., self._size :]
        return log_std.sum(-1) + 0.5 * self._size * (1.0 + _LOG_2PI)

    def kl(self, dist_inputs: Tensor, other_inputs: Tensor) -> Tensor:
        """Return the KL divergence (B,) in nats."""
        mean, log_std = dist_inputs.chunk(2, -1)
        other_mean, other_log_std = other_inputs.chunk(2, -1)
        squares = (2 * log_std).exp() + (mean - other_mean).square()
        return (other_log_std - log_std + 0.5 * squares * (-2 * other_log_std).exp() - 0.5).sum(-1)

    def _shaped(self, flat: Tensor) -> Tensor:
        return flat if self._is_plain else flat.reshape(*flat.shape[:-1], *self._shape).to(self._dtype)


_LOG_2 = math.log(2.0)
# Recorded actions exactly at the bounds would correspond to infinite normal variables.
_LARGEST_TANH = 1.0 - 1e-6
_FLOATS = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)  # all computations use float32
_NUM_NODES = 32  # of the quadrature for the entropy; accurate to 1e-3 nats for a std up to 3 before the tanh


class SquashedGaussian(ActionDistribution):
    """a = center + scale * tanh(x), x ~ N(mean, std); `dist_inputs` are means and log stds of x (B, 2 A).

    Args:
        space: float Box with finite bounds and A numbers.

    Attributes:
        log_volume: log of the space's volume.

    Raises:
        TypeError: the space is not a bounded float Box.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        if not _is_usable(space):
            hint = "; for Discrete use algorithm=sac_discrete or dqn" if isinstance(space, gym.spaces.Discrete) else ""
            raise TypeError(f"a squashed Gaussian cannot give actions of {space}; expected: a bounded float Box{hint}")
        assert isinstance(space, gym.spaces.Box)
        self._shape = space.shape
        self._dtype = torch_dtype(space.dtype, torch.float32)
        self._normal = DiagGaussian((math.prod(space.shape),))
        self.num_inputs, self.num_noise = self._normal.num_inputs, self._normal.num_noise
        self.log_std_inputs = self._normal.log_std_inputs
        low, high = (
            torch.from_numpy(np.asarray(np.clip(np.float64(bound), *_FLOATS), np.float32))
            for bound in (space.low, space.high)
        )
        tables = _Tables.of(low, high)
        width = high - low
        log_widths = torch.where(width.isfinite(), width.log(), _LOG_2 + tables.log_scale.reshape(width.shape))
        self.log_volume = float(log_widths.sum())
        self._tables = {torch.device("cpu"): tables}
        is_unit = bool((space.low == -1).all() and (space.high == 1).all())  # tanh stays within these bounds
        self._bounds = None if is_unit else _in_dtype(space, self._dtype)

    def draw_noise(self, stream: np.random.Generator, leading: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Return standard normal noise (*leading, A)."""
        return self._normal.draw_noise(stream, leading)

    def sample(self, dist_inputs: Tensor, noise: Tensor) -> Tensor:
        """Return (B, *shape) floats within the bounds."""
        return self._squashed(self._normal.sample(dist_inputs, noise))

    def sample_with_log_prob(self, dist_inputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B, *shape) actions and their (B,) log densities, both differentiable, without computing arctanh."""
        x = self._normal.sample(dist_inputs, noise)
        return self._squashed(x), self._normal.log_prob(dist_inputs, x) - self._log_slopes(x).sum(-1)

    def mode(self, dist_inputs: Tensor) -> Tensor:
        """Return (B, *shape) floats, the image of the mean of x."""
        return self._squashed(self._normal.mode(dist_inputs))

    def mode_with_noise(self, dist_inputs: Tensor, noise: Tensor) -> Tensor:
        """Return (B, *shape) floats: the mode plus noise (B, A) in units of half the distance between the bounds,
        clipped to the bounds."""
        unit = (self._normal.mode(dist_inputs).tanh() + noise).clamp(-1.0, 1.0)
        return self.at_shares(0.5 * (unit + 1.0))

    def log_prob(self, dist_inputs: Tensor, actions: Tensor) -> Tensor:
        """Return (B,) log densities of (B, *shape) actions; an action at a bound is treated as just inside."""
        flat = actions.reshape(*dist_inputs.shape[:-1], -1).to(dist_inputs.dtype)
        tables = tables_on(self._tables, flat.device)
        x = ((flat - tables.center) / tables.scale).clamp(-_LARGEST_TANH, _LARGEST_TANH).atanh()
        return self._normal.log_prob(dist_inputs, x) - self._log_slopes(x).sum(-1)

    def entropy(self, dist_inputs: Tensor) -> Tensor:
        """Return the entropy (B,) in nats: H(x) + E[log da/dx], with the mean computed by Gauss-Hermite quadrature."""
        mean, log_std = dist_inputs.unsqueeze(-1).chunk(2, -2)  # (B, A, 1)
        tables = tables_on(self._tables, mean.device)
        log_slopes = _log_tanh_slope(mean + log_std.exp() * tables.nodes) @ tables.weights + tables.log_scale  # (B, A)
        return self._normal.entropy(dist_inputs) + log_slopes.sum(-1)

    def kl(self, dist_inputs: Tensor, other_inputs: Tensor) -> Tensor:
        """Return the KL divergence (B,) in nats: the divergence of the normal variables, because tanh is one to one."""
        return self._normal.kl(dist_inputs, other_inputs)

    def draw_shares(self, stream: np.random.Generator, leading: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Return uniform random fractions (*leading, A) from 0 to 1, for `at_shares`."""
        return stream.random((*leading, self.num_noise), np.float32)

    def at_shares(self, shares: Tensor) -> Tensor:
        """Return the actions (..., *shape) at these fractions (..., A) of the distance between the bounds; for uniform
        fractions their density is `exp(-log_volume)`."""
        tables = tables_on(self._tables, shares.device)
        return self._shaped(tables.center + (2.0 * shares - 1.0) * tables.scale)

    def _squashed(self, x: Tensor) -> Tensor:
        tables = tables_on(self._tables, x.device)
        return self._shaped(tables.center + tables.scale * x.tanh())

    def _shaped(self, flat: Tensor) -> Tensor:
        actions = flat.reshape(*flat.shape[:-1], *self._shape).to(self._dtype)
        if self._bounds is None:
            return actions
        low, high = (bound.to(actions.device) for bound in self._bounds)
        return torch.minimum(torch.maximum(actions, low), high)  # rounding could exceed a bound

    def _log_slopes(self, x: Tensor) -> Tensor:
        return _log_tanh_slope(x) + tables_on(self._tables, x.device).log_scale


@dataclass(frozen=True)
class _Tables:
    """Center of the bounds, half their distance and its log (A,); nodes and weights of the quadrature."""

    center: Tensor
    scale: Tensor
    log_scale: Tensor
    nodes: Tensor
    weights: Tensor

    @classmethod
    def of(cls, low: Tensor, high: Tensor) -> _Tables:
        center, scale = (0.5 * high + 0.5 * low).flatten(), (0.5 * high - 0.5 * low).flatten()
        nodes, weights = np.polynomial.hermite_e.hermegauss(_NUM_NODES)
        quadrature = (torch.from_numpy(values.astype(np.float32)) for values in (nodes, weights / weights.sum()))
        return cls(center, scale, scale.log(), *quadrature)


def _log_tanh_slope(x: Tensor) -> Tensor:
    """Return log(1 - tanh(x)^2), exact even if tanh(x) rounds to 1."""
    return 2.0 * (_LOG_2 - x - F.softplus(-2.0 * x))


def _in_dtype(space: gym.spaces.Box, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    low, high = (torch.from_numpy(np.array(bound, np.float64)).to(dtype) for bound in (space.low, space.high))
    return low, high


def _is_usable(space: gym.Space[Any]) -> bool:
    if not isinstance(space, gym.spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        return False
    return bool(space.low.size and np.isfinite(space.low).all() and np.isfinite(space.high).all())
