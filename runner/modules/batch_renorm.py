"""Batch renormalisation (Ioffe, 2017, https://arxiv.org/abs/1702.03275) in ensembles of networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from runner.modules.layers import ACTIVATIONS, ALL, EnsembleMLP, LayerOptions, Members

# Constants of CrossQ's authors.
_MOMENTUM, _EPSILON = 0.01, 1e-3
_LARGEST_RATIO, _LARGEST_SHIFT, _WARM_UP_STEPS = 3.0, 5.0, 100_000


class BatchRenorm(nn.Module):
    """Normalises the inputs of E networks by running statistics, or while learning by the statistics of a batch.

    While learning, y = (x - m) / s * r + d with the mean m and the standard deviation s of the batch. The corrections
    r = s / s_run, between 1/3 and 3, and d = (m - m_run) / s_run, between -5 and 5, are constants for the gradient. In
    the first 100,000 steps r = 1 and d = 0. A learned scale and shift follow.

    Args:
        num_members: E.
        width: width of the inputs.
    """

    mean: Tensor
    var: Tensor
    num_steps: Tensor

    def __init__(self, num_members: int, width: int) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Parameter(value(num_members, 1, width)) for value in (torch.ones, torch.zeros))
        self.register_buffer("mean", torch.zeros(num_members, 1, width))
        self.register_buffer("var", torch.ones(num_members, 1, width))
        self.register_buffer("num_steps", torch.zeros(()))

    def forward(self, inputs: Tensor, members: Members = ALL) -> Tensor:
        """Normalise inputs (B, width) or (M, B, width) of the networks `members` by the running statistics."""
        mean, var, scale, shift = (value[members] for value in (self.mean, self.var, self.scale, self.shift))
        return (inputs - mean) * (var + _EPSILON).rsqrt() * scale + shift

    def forward_batch(self, inputs: Tensor) -> Tensor:
        """Normalise inputs (E, B, width) by their statistics, and update the running statistics."""
        var, mean = torch.var_mean(inputs, -2, correction=0, keepdim=True)
        std = (var + _EPSILON).sqrt()
        with torch.no_grad():
            running_std = (self.var + _EPSILON).sqrt()
            is_warm = self.num_steps >= _WARM_UP_STEPS
            ratio = (std / running_std).clamp(1 / _LARGEST_RATIO, _LARGEST_RATIO)
            offset = ((mean - self.mean) / running_std).clamp(-_LARGEST_SHIFT, _LARGEST_SHIFT)
            ratio = torch.where(is_warm, ratio, torch.ones_like(ratio))
            offset = torch.where(is_warm, offset, torch.zeros_like(offset))
            self.mean.lerp_(mean, _MOMENTUM)
            self.var.lerp_(var, _MOMENTUM)
            self.num_steps.add_(1.0)
        return ((inputs - mean) / std * ratio + offset) * self.scale + self.shift


class BatchNormEnsemble(nn.Module):
    """E perceptrons with batch renormalisation of the input and after each activation, computed together.

    Args:
        num_members: E.
        num_inputs, hiddens, options: see `EnsembleMLP`.

    Attributes:
        num_outputs: width of the last layer.
        num_hidden: 0, since dropout is not supported.
    """

    def __init__(self, num_members: int, num_inputs: int, hiddens: Sequence[int], options: LayerOptions) -> None:
        super().__init__()
        widths = [num_inputs, *hiddens]
        self.num_outputs, self.num_hidden = widths[-1], 0
        self._activate = ACTIVATIONS[options.activation]
        plain = replace(options, use_layernorm=False)
        pairs = pairwise(widths)
        self.layers = nn.ModuleList(EnsembleMLP(num_members, width, [], plain, after) for width, after in pairs)
        self.norms = nn.ModuleList(BatchRenorm(num_members, width) for width in widths)
        self._num_members = num_members

    def forward(self, inputs: Tensor, members: Members = ALL, scales: Tensor | None = None) -> Tensor:
        """Compute (M, B, num_outputs) from inputs (B, num_inputs) or (M, B, num_inputs), with running statistics.

        `scales` must be None, because dropout is not supported.
        """
        hidden: Tensor = self.norms[0].forward(inputs, members)
        for layer, norm in zip(self.layers, self.norms[1:], strict=True):
            hidden = norm.forward(self._activated(layer.forward(hidden, members)), members)
        return hidden

    def forward_batch(self, inputs: Tensor) -> Tensor:
        """Compute (E, B, num_outputs) like `forward`, with this batch's statistics; updates the running statistics."""
        first, *norms = (norm for norm in self.norms if isinstance(norm, BatchRenorm))
        hidden = first.forward_batch(inputs.expand(self._num_members, -1, -1))
        for layer, norm in zip(self.layers, norms, strict=True):
            hidden = norm.forward_batch(self._activated(layer.forward(hidden)))
        return hidden

    def _activated(self, inputs: Tensor) -> Tensor:
        return inputs if self._activate is None else self._activate(inputs)
