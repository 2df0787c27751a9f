"""Multi-layer perceptrons, and what layers are made of: activations and initialisers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Activation = Callable[[Tensor], Tensor]
Initialize = Callable[[Tensor], object]

ACTIVATIONS: dict[str, Activation | None] = {
    "tanh": torch.tanh,
    "relu": torch.relu_,  # in place: what a layer returns is needed nowhere else
    "silu": F.silu,
    "elu": F.elu,
    "gelu": F.gelu,
    "linear": None,
}


@dataclass(frozen=True)
class LayerOptions:
    """What the layers of a network have in common.

    Attributes:
        activation: name of the activation after each hidden layer.
        use_layernorm: normalise before each activation.
        init_weight, init_bias: change a layer's parameters in place after torch's initialisation.
    """

    activation: str
    use_layernorm: bool = False
    init_weight: Initialize | None = None
    init_bias: Initialize | None = None

    def initialize(self, weight: Tensor, bias: Tensor) -> None:
        """Initialise the parameters of one layer."""
        if self.init_weight is not None:
            self.init_weight(weight)
        if self.init_bias is not None:
            self.init_bias(bias)


class MLP(nn.Module):
    """Linear layers with an activation after each hidden one.

    For the few rows of a vector step most of a layer's time is the call of `nn.Module`, so the layers' parameters are
    used directly.

    Args:
        num_inputs: width of the input.
        hiddens: widths of the hidden layers.
        options: activation, layer norm, initialisation.
        num_outputs: width of a last layer without activation; None: the last hidden layer is the output.
    """

    def __init__(
        self, num_inputs: int, hiddens: Sequence[int], options: LayerOptions, num_outputs: int | None = None
    ) -> None:
        super().__init__()
        widths = [num_inputs, *hiddens, *([] if num_outputs is None else [num_outputs])]
        self.num_outputs = widths[-1]
        self.layers = nn.ModuleList()
        self.norms = nn.ModuleList()
        chain: list[tuple[Tensor, Tensor, nn.Module | None, Activation | None]] = []
        for number, (width, next_width) in enumerate(pairwise(widths)):
            layer = nn.Linear(width, next_width)
            self.layers.append(layer)
            options.initialize(layer.weight, layer.bias)
            is_hidden = number < len(hiddens)
            norm = nn.LayerNorm(next_width) if is_hidden and options.use_layernorm else None
            if norm is not None:
                self.norms.append(norm)
            activate = ACTIVATIONS[options.activation] if is_hidden else None
            chain.append((layer.weight, layer.bias, norm, activate))
        self._chain = tuple(chain)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute (B, num_inputs) -> (B, num_outputs)."""
        for weight, bias, norm, activate in self._chain:
            inputs = F.linear(inputs, weight, bias)
            if norm is not None:
                inputs = norm(inputs)
            if activate is not None:
                inputs = activate(inputs)
        return inputs


def initializer(name: str | None, kwargs: Mapping[str, Any]) -> Initialize | None:
    """Return the function `name` of torch.nn.init with `kwargs`, None for torch's initialisation.

    Raises:
        ValueError: there is no such function.
    """
    if name is None:
        return None
    names = [n for n in dir(nn.init) if n.endswith("_") and not n.startswith("_")]
    if name not in names:
        raise ValueError(f"no initialiser {name!r} in torch.nn.init; allowed: {', '.join(names)}")
    initialise = getattr(nn.init, name)
    return lambda weight: initialise(weight, **kwargs)
