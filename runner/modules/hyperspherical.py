"""Hyperspherical networks of SimbaV2 (Lee et al., 2025, https://arxiv.org/abs/2502.15280)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runner.modules.layers import ACTIVATIONS, ALL, Initialize, LayerOptions, Members, of_members
from runner.modules.residual import width_of_blocks

_SHIFT = 3.0  # c_shift
_EXPANSION = 4


class HypersphericalEnsemble(nn.Module):
    """E networks of blocks whose features have length 1, with equal shapes, initialised independently and computed
    together.

    h = norm(s W norm([x, 3])), then h <- norm(h + a (norm(W2 f(s1 W1 h)) - h)) for each of L blocks of width d.
    norm(x) = x / ||x||, f is the activation, W1 h has width 4 d, and s, s1 and a are learned factors of each feature.
    The weights of each output of W, W1 and W2 have length 1. Initially they are orthogonal, and s = sqrt(2 / d),
    s1 = sqrt(2 / (4 d)) and a = 1 / (L + 1), as in the paper. The appended 3 preserves the length of x.

    Weights are normalised in each forward pass, in the paper after each gradient step. Stored parameters can grow,
    which lowers their effective learning rate.

    Args:
        num_members: E.
        num_inputs: width of x.
        hiddens: d for each block; all are equal.
        options: activation, initialisation of weights.

    Attributes:
        num_outputs: d.
        num_hidden: 0, since the blocks do not support dropout.

    Raises:
        ValueError: the widths differ.
    """

    def __init__(self, num_members: int, num_inputs: int, hiddens: Sequence[int], options: LayerOptions) -> None:
        super().__init__()
        width = self.num_outputs = width_of_blocks(hiddens)
        self.num_hidden = 0
        self._activate = ACTIVATIONS[options.activation]
        wide, init = _EXPANSION * width, options.init_weight or nn.init.orthogonal_
        shapes = [(num_inputs + 1, width), *((width, wide), (wide, width)) * len(hiddens)]
        self.weights = nn.ParameterList(_weights(num_members, *shape, init) for shape in shapes)
        self.gains = nn.ParameterList(
            _constants(num_members, size, math.sqrt(2 / size)) for size in (width, *[wide] * len(hiddens))
        )
        # a = sqrt(d) / (L + 1) times a parameter, which thus has the size of the weights.
        self._step_factor = math.sqrt(width) / (len(hiddens) + 1)
        self.steps = nn.ParameterList(_constants(num_members, width, 1 / math.sqrt(width)) for _ in hiddens)

    def forward(self, inputs: Tensor, members: Members = ALL, scales: Tensor | None = None) -> Tensor:
        """Compute (M, B, num_outputs) from inputs (B, num_inputs) or (M, B, num_inputs); see `EnsembleMLP.forward`.

        `scales` must be None, because dropout is not supported.
        """
        hidden = self._times(F.normalize(F.pad(inputs, (0, 1), value=_SHIFT), dim=-1), 0, members)
        hidden = F.normalize(of_members(self.gains[0], members) * hidden, dim=-1)
        for number, step in enumerate(self.steps):
            inner = of_members(self.gains[number + 1], members) * self._times(hidden, 2 * number + 1, members)
            if self._activate is not None:
                inner = self._activate(inner)
            target = F.normalize(self._times(inner, 2 * number + 2, members), dim=-1)
            hidden = F.normalize(torch.lerp(hidden, target, self._step_factor * of_members(step, members)), dim=-1)
        return hidden

    def _times(self, inputs: Tensor, number: int, members: Members) -> Tensor:
        """Multiply inputs by weight `number`, normalised for each output; return (M, B, out)."""
        return torch.matmul(inputs, F.normalize(of_members(self.weights[number], members), dim=-2))


def _weights(num_members: int, num_inputs: int, num_outputs: int, init: Initialize) -> nn.Parameter:
    """Return initial weights (E, in, out)."""
    weights = torch.empty(num_members, num_outputs, num_inputs)
    for weight in weights:
        init(weight)
    return nn.Parameter(F.normalize(weights, dim=-1).mT.contiguous())


def _constants(num_members: int, size: int, value: float) -> nn.Parameter:
    return nn.Parameter(torch.full((num_members, 1, size), value))
