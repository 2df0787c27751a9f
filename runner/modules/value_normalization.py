"""Scales in which a network predicts values: symlog, or standardised by PopArt."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_STEP_SIZE = 0.1
_SMALLEST_STD = 1e-4


class SymlogScale(nn.Module):
    """symlog(x) = sign(x) log(|x| + 1) (Hafner et al., 2023, https://arxiv.org/abs/2301.04104, eq. 9).

    The parts below and above 0 are computed separately. The gradient of `abs` would be 0 at 0, so a value function with
    weights of 0 would not learn. At 0, `clamp` has the gradient 1, and `relu` 0.
    """

    def normalized(self, values: Tensor) -> Tensor:
        """Return symlog of values (B,)."""
        return values.clamp(min=0.0).log1p() - (-values).relu().log1p()

    def values(self, normalized: Tensor) -> Tensor:
        """Return the inverse of `normalized`."""
        return normalized.clamp(min=0.0).expm1() - (-normalized).relu().expm1()

    def update(self, targets: Tensor) -> None:
        """Do nothing: the scale is fixed."""


class PopArtScale(nn.Module):
    """Standardises values by moving averages of their targets (van Hasselt et al., 2016,
    https://arxiv.org/abs/1602.07714).

    When the averages change, the last layer of the value function is rescaled, so that all values stay the same.

    Args:
        layer: the last layer of the value function.

    Attributes:
        mean, variance: moving averages of the targets' mean and variance (1,). The weight of a train batch is 0.1, or
            one over the number of batches for the first ten.
        num_batches: train batches so far (1,).
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self._layer = [layer]  # the parameters belong to the value function
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("variance", torch.ones(1))
        self.register_buffer("num_batches", torch.zeros(1))

    @property
    def std(self) -> Tensor:
        """The standard deviation (1,) of the targets."""
        return self.variance.sqrt().clamp(min=_SMALLEST_STD)

    def normalized(self, values: Tensor) -> Tensor:
        """Return standardised values (B,)."""
        return (values - self.mean) / self.std

    def values(self, normalized: Tensor) -> Tensor:
        """Return the inverse of `normalized`."""
        return normalized * self.std + self.mean

    @torch.no_grad()
    def update(self, targets: Tensor) -> None:
        """Update the averages with the targets (B,) of a train batch."""
        [layer] = self._layer
        mean, std = self.mean.clone(), self.std
        self.num_batches += 1
        step_size = (1 / self.num_batches).clamp(min=_STEP_SIZE)
        difference = targets.mean() - mean
        self.mean += step_size * difference
        self.variance.copy_(
            (1 - step_size) * (self.variance + step_size * difference.square()) + step_size * targets.var(correction=0)
        )
        layer.weight.mul_(std / self.std)
        layer.bias.mul_(std).add_(mean - self.mean).div_(self.std)

    mean: Tensor
    variance: Tensor
    num_batches: Tensor


ValueScale = SymlogScale | PopArtScale


def make_value_scale(kind: str, layers: nn.ModuleList) -> ValueScale | None:
    """Return the scale of `module.vf_normalization` for a value function with these layers; None for `none`."""
    if kind == "none":
        return None
    last = layers[-1]
    assert isinstance(last, nn.Linear)
    return SymlogScale() if kind == "symlog" else PopArtScale(last)
