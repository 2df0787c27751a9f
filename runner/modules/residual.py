"""Residual networks of SimBa (Lee et al., 2024, https://arxiv.org/abs/2410.09754)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from runner.modules.layers import ALL, EnsembleMLP, EnsembleNorms, LayerOptions, Members


class ResidualEnsemble(nn.Module):
    """E networks of residual blocks with equal shapes, initialised independently and computed together.

    h = W x + b, then h <- h + W2 f(W1 norm(h) + b1) + b2 for each block, and norm(h) at the end. f is the activation,
    norm is layer normalisation, and W1 x has four times the width of h. Without other initialisers, W is orthogonal,
    W1 and W2 are He-normal, and biases are 0, as in the paper.

    Args:
        num_members: E.
        num_inputs: width of the input.
        hiddens: width of h for each block; all are equal.
        options: activation, initialisation.

    Attributes:
        num_outputs: width of h.
        num_hidden: 0, since the blocks do not support dropout.

    Raises:
        ValueError: the widths differ.
    """

    def __init__(self, num_members: int, num_inputs: int, hiddens: Sequence[int], options: LayerOptions) -> None:
        super().__init__()
        width = self.num_outputs = width_of_blocks(hiddens)
        self.num_hidden = 0
        plain = replace(options, use_layernorm=False, init_bias=options.init_bias or nn.init.zeros_)
        of_input = replace(plain, init_weight=options.init_weight or nn.init.orthogonal_)
        of_blocks = replace(plain, init_weight=options.init_weight or nn.init.kaiming_normal_)
        self.embedding = EnsembleMLP(num_members, num_inputs, [], of_input, width)
        self.blocks = nn.ModuleList(EnsembleMLP(num_members, width, [4 * width], of_blocks, width) for _ in hiddens)
        self.norms = EnsembleNorms(num_members, [width] * (len(hiddens) + 1))

    def forward(self, inputs: Tensor, members: Members = ALL, scales: Tensor | None = None) -> Tensor:
        """Compute (M, B, num_outputs) from inputs (B, num_inputs) or (M, B, num_inputs); see `EnsembleMLP.forward`.

        `scales` must be None, because dropout is not supported.
        """
        hidden: Tensor = self.embedding.forward(inputs, members)
        for number, block in enumerate(self.blocks):
            hidden = hidden + block.forward(self.norms.normalise(number, hidden, members), members)
        return self.norms.normalise(len(self.blocks), hidden, members)


def width_of_blocks(hiddens: Sequence[int]) -> int:
    """Return the width of residual blocks.

    Raises:
        ValueError: the widths differ.
    """
    if len(set(hiddens)) != 1:
        raise ValueError(f"residual blocks need one width, got module.fcnet_hiddens {list(hiddens)}")
    return hiddens[0]
