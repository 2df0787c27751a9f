"""Layers of networks: multi-layer perceptrons with their activations and initialisers, and recurrent layers.

Dimension letters: S sequences (N when acting) of length L, F input width, H width of the recurrent state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig

Activation = Callable[[Tensor], Tensor]
Initialize = Callable[[Tensor], object]
# Selection of networks of an ensemble: their indices (M,) int64, or a slice.
Members = Tensor | slice
ALL = slice(None)

ACTIVATIONS: dict[str, Activation | None] = {
    "tanh": torch.tanh,
    "relu": torch.relu_,  # in place, because the output of a layer is not needed elsewhere
    "silu": F.silu,
    "elu": F.elu,
    "gelu": F.gelu,
    "linear": None,
}


@dataclass(frozen=True)
class LayerOptions:
    """Options shared by the layers of a network.

    Attributes:
        activation: name of the activation after each hidden layer.
        use_layernorm: whether to normalise before each activation.
        init_weight, init_bias: functions that change a layer's parameters in place after torch's initialisation.
        sigma0: initial scale of the noise on all parameters, or None without noise.
    """

    activation: str
    use_layernorm: bool = False
    init_weight: Initialize | None = None
    init_bias: Initialize | None = None
    sigma0: float | None = None

    def initialize(self, weight: Tensor, bias: Tensor) -> None:
        """Initialise the parameters of one layer."""
        if self.init_weight is not None:
            self.init_weight(weight)
        if self.init_bias is not None:
            self.init_bias(bias)


def layer_options(config: ModuleConfig, prefix: str) -> LayerOptions:
    """Return the options of the layers whose settings begin with `prefix`: "conv", "fcnet" or "head_fcnet"."""

    def setting(name: str) -> Any:
        return getattr(config, f"{prefix}_{name}")

    return LayerOptions(
        setting("activation"),
        setting("use_layernorm"),
        initializer(setting("kernel_initializer"), setting("kernel_initializer_kwargs")),
        initializer(setting("bias_initializer"), setting("bias_initializer_kwargs")),
    )


class DirectLayers(nn.Module):
    """Base class of networks that call torch's functions on their parameters, which they keep in tuples.

    Attributes:
        parameter_tuples: names of the attributes with these tuples, which may be nested.
    """

    parameter_tuples: tuple[str, ...]


class MLP(DirectLayers):
    """Linear layers with an activation after each hidden layer.

    With the few rows of a vector step, calling `nn.Module` takes most of a layer's time, so the parameters are used
    directly.

    With `sigma0` the layers are noisy (Fortunato et al., 2018, https://arxiv.org/abs/1706.10295, eq. 9, factorised):
    y = W x + b + eps_out * (sigma_W (eps_in * x) + sigma_b). Rows share the noise or have separate noise.

    Args:
        num_inputs: width of the input.
        hiddens: widths of the hidden layers.
        options: activation, layer norm, initialisation, noise.
        num_outputs: width of a last layer without activation, or None if the last hidden layer is the output.

    Attributes:
        num_noise: numbers in a row of noise, eps_in and eps_out of each layer; 0 without noise.
    """

    parameter_tuples = ("_chain", "_sigma_chain")

    def __init__(
        self, num_inputs: int, hiddens: Sequence[int], options: LayerOptions, num_outputs: int | None = None
    ) -> None:
        super().__init__()
        widths = [num_inputs, *hiddens, *([] if num_outputs is None else [num_outputs])]
        self.num_outputs = widths[-1]
        self.layers = nn.ModuleList()
        self.norms = nn.ModuleList()
        self.sigmas = nn.ModuleList()
        self._noise_widths: list[int] = []
        sigma_chain: list[tuple[Tensor, Tensor]] = []
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
            if options.sigma0 is not None:
                sigma = _sigma(width, next_width, options.sigma0)
                self.sigmas.append(sigma)
                sigma_chain.append((sigma.weight, sigma.bias))
                self._noise_widths += [width, next_width]
        self.num_noise = sum(self._noise_widths)
        self._chain, self._sigma_chain = tuple(chain), tuple(sigma_chain)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute (B, num_inputs) -> (B, num_outputs); noisy layers are used without noise."""
        for weight, bias, norm, activate in self._chain:
            inputs = F.linear(inputs, weight, bias)
            if norm is not None:
                inputs = norm(inputs)
            if activate is not None:
                inputs = activate(inputs)
        return inputs

    def forward_with_noise(self, inputs: Tensor, noise: Tensor) -> Tensor:
        """Compute `forward` with noise (B, num_noise), or (num_noise,) for all rows; see `factorised_noise`."""
        eps = torch.split(noise, self._noise_widths, -1)
        layers = zip(self._chain, self._sigma_chain, eps[::2], eps[1::2], strict=True)
        for (weight, bias, norm, activate), (sigma_weight, sigma_bias), eps_in, eps_out in layers:
            if noise.ndim == 1:
                noisy_weight = torch.addcmul(weight, torch.outer(eps_out, eps_in), sigma_weight)
                inputs = F.linear(inputs, noisy_weight, torch.addcmul(bias, eps_out, sigma_bias))
            else:
                noisy = F.linear(eps_in * inputs, sigma_weight, sigma_bias)
                inputs = torch.addcmul(F.linear(inputs, weight, bias), eps_out, noisy)
            if norm is not None:
                inputs = norm(inputs)
            if activate is not None:
                inputs = activate(inputs)
        return inputs


def make_head(num_inputs: int, config: ModuleConfig, num_outputs: int) -> MLP:
    """Make the perceptron between an encoder and outputs of the module."""
    return MLP(num_inputs, config.head_fcnet_hiddens, layer_options(config, "head_fcnet"), num_outputs)


class EnsembleNorms(nn.ParameterList):
    """Scales and shifts (E, 1, width) of the layer norms of E networks, in turn.

    Args:
        num_members: E.
        widths: width of each norm.
    """

    def __init__(self, num_members: int, widths: Sequence[int]) -> None:
        super().__init__()
        for width in widths:
            self.append(nn.Parameter(torch.ones(num_members, 1, width)))
            self.append(nn.Parameter(torch.zeros(num_members, 1, width)))

    def normalise(self, number: int, inputs: Tensor, members: Members) -> Tensor:
        """Normalise inputs (M, B, width) by a norm of the networks `members`."""
        scale, shift = self[2 * number], self[2 * number + 1]
        return torch.addcmul(
            of_members(shift, members), F.layer_norm(inputs, inputs.shape[-1:]), of_members(scale, members)
        )


class EnsembleMLP(nn.Module):
    """E perceptrons of equal shape, initialised independently and computed together.

    Args:
        num_members: E.
        num_inputs, hiddens, options, num_outputs: see `MLP`; noise is not supported.

    Attributes:
        num_hidden: total width of all hidden layers.
    """

    def __init__(
        self,
        num_members: int,
        num_inputs: int,
        hiddens: Sequence[int],
        options: LayerOptions,
        num_outputs: int | None = None,
    ) -> None:
        super().__init__()
        members = [MLP(num_inputs, hiddens, options, num_outputs) for _ in range(num_members)]
        self.num_outputs, self.num_hidden = members[0].num_outputs, sum(hiddens)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        self.norms = EnsembleNorms(num_members, hiddens if options.use_layernorm else ())
        self._hiddens, self._activate = list(hiddens), ACTIVATIONS[options.activation]
        self._use_layernorm = options.use_layernorm
        for layers in zip(*(member.layers for member in members), strict=True):
            self.weights.append(
                nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]))
            )  # (E, in, out)
            self.biases.append(
                nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers]))
            )  # (E, 1, out)

    def forward(self, inputs: Tensor, members: Members = ALL, scales: Tensor | None = None) -> Tensor:
        """Compute (M, B, num_outputs) from inputs (B, num_inputs), or from separate inputs (M, B, num_inputs).

        Args:
            inputs: see above.
            members: indices (M,) int64 of the perceptrons to compute, or a slice of them.
            scales: (M, B, num_hidden) dropout factors of each hidden layer's outputs before norm and activation.
        """
        of_layers = None if scales is None else torch.split(scales, self._hiddens, -1)
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            weight, bias = of_members(weight, members), of_members(bias, members)
            inputs = _linear(inputs, weight, bias)
            if number == len(self._hiddens):
                break
            if of_layers is not None:
                inputs = inputs * of_layers[number]
            if self._use_layernorm:
                inputs = self.norms.normalise(number, inputs, members)
            if self._activate is not None:
                inputs = self._activate(inputs)
        return inputs


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute (M, B, out) from inputs (B, in) or (M, B, in), weights (M, in, out) and biases (M, 1, out)."""
    if weight.shape[-1] == 1:  # for one column, torch's batched product takes four times as long
        return (inputs * weight.mT).sum(-1, keepdim=True) + bias
    return torch.baddbmm(bias, inputs.expand(len(weight), -1, -1), weight)


def of_members(parameter: Tensor, members: Members) -> Tensor:
    """Return the parameters (M, ...) of the networks `members` from the parameters (E, ...) of an ensemble."""
    return parameter if members is ALL else parameter[members]


def _sigma(num_inputs: int, num_outputs: int, sigma0: float) -> nn.Linear:
    """Return sigma_W and sigma_b of a noisy layer, initialised as in section 3.2 of the paper."""
    sigma = nn.Linear(num_inputs, num_outputs)
    nn.init.constant_(sigma.weight, sigma0 / math.sqrt(num_inputs))
    nn.init.constant_(sigma.bias, sigma0 / math.sqrt(num_inputs))
    return sigma


def factorised_noise(stream: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return f(x) = sgn(x) sqrt|x| of standard normal numbers: the factors of the noise of noisy layers."""
    normal = stream.standard_normal(shape, np.float32)
    return np.copysign(np.sqrt(np.abs(normal)), normal)


def initializer(name: str | None, kwargs: Mapping[str, Any]) -> Initialize | None:
    """Return the function `name` of torch.nn.init with `kwargs`, or None for torch's initialisation.

    Raises:
        ValueError: the function does not exist.
    """
    if name is None:
        return None
    names = [n for n in dir(nn.init) if n.endswith("_") and not n.startswith("_")]
    if name not in names:
        raise ValueError(f"torch.nn.init does not define {name!r}; expected: {', '.join(names)}")
    initialise = getattr(nn.init, name)
    return lambda weight: initialise(weight, **kwargs)


State = dict[str, Tensor]


class Memory(DirectLayers):
    """One recurrent layer with torch's parameters and initialisation, U(-1/sqrt(H), 1/sqrt(H)).

    It calls torch's functions on the parameters directly, which may be views of a larger vector. A single step of a
    small layer takes a third of the time of `nn.LSTM`.

    Args:
        num_inputs: F.
        size: H.
        init_weight, init_bias: functions that change both weights or both biases in place after this initialisation.
    """

    parameter_tuples = ("_weights",)
    _num_gates: int
    _state_names: tuple[str, ...]

    def __init__(
        self, num_inputs: int, size: int, init_weight: Initialize | None = None, init_bias: Initialize | None = None
    ) -> None:
        super().__init__()
        self.num_outputs = size
        rows = self._num_gates * size
        self.weight_ih = nn.Parameter(torch.empty(rows, num_inputs))
        self.weight_hh = nn.Parameter(torch.empty(rows, size))
        self.bias_ih = nn.Parameter(torch.empty(rows))
        self.bias_hh = nn.Parameter(torch.empty(rows))
        self._weights = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        bound = 1 / math.sqrt(size)
        for parameter, init in zip(self._weights, (init_weight, init_weight, init_bias, init_bias), strict=True):
            nn.init.uniform_(parameter, -bound, bound)
            if init is not None:
                init(parameter)

    def initial_state(self) -> State:
        """Return zeros (H,) float32."""
        return {name: self.bias_hh.new_zeros(self.num_outputs) for name in self._state_names}

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Process sequences.

        Args:
            inputs: (S, L, F) float32.
            state: state before the first step, name -> (S, H).

        Returns:
            (S, L, H) outputs, and the state after the last step, name -> (S, H).
        """
        if inputs.shape[1] != 1:
            return self._sequence(inputs, state)
        state = self._step(inputs.squeeze(1), state)
        return state["h"].unsqueeze(1), state

    def _step(self, inputs: Tensor, state: State) -> State:
        raise NotImplementedError

    def _sequence(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        raise NotImplementedError

    def _packed_weights(self) -> tuple[Tensor, ...]:
        """Return the parameters for torch's kernels; cuDNN needs them in a separate vector."""
        if not self.weight_ih.is_cuda:
            return self._weights
        sizes = [weight.numel() for weight in self._weights]
        parts = torch.split(torch.cat([weight.reshape(-1) for weight in self._weights]), sizes)
        return tuple(part.view_as(weight) for part, weight in zip(parts, self._weights, strict=True))


class LSTM(Memory):
    """Long short-term memory (Hochreiter & Schmidhuber, 1997); its state is {"h": (H,), "c": (H,)}."""

    _num_gates = 4
    _state_names = ("h", "c")

    def _step(self, inputs: Tensor, state: State) -> State:
        h, c = torch.lstm_cell(inputs, (state["h"], state["c"]), *self._weights)
        return {"h": h, "c": c}

    def _sequence(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        before = (state["h"].unsqueeze(0), state["c"].unsqueeze(0))
        outputs, h, c = torch.lstm(
            inputs,
            before,
            self._packed_weights(),
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=torch.is_grad_enabled(),  # keeps values for the backward pass
            bidirectional=False,
            batch_first=True,
        )
        return outputs, {"h": h.squeeze(0), "c": c.squeeze(0)}


class GRU(Memory):
    """Gated recurrent unit (Cho et al., 2014); its state is {"h": (H,)}."""

    _num_gates = 3
    _state_names = ("h",)

    def _step(self, inputs: Tensor, state: State) -> State:
        return {"h": torch.gru_cell(inputs, state["h"], *self._weights)}

    def _sequence(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        outputs, h = torch.gru(
            inputs,
            state["h"].unsqueeze(0),
            self._packed_weights(),
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=torch.is_grad_enabled(),  # keeps values for the backward pass
            bidirectional=False,
            batch_first=True,
        )
        return outputs, {"h": h.squeeze(0)}


def through_memory(encoder: nn.Module, memory: Memory, obs: Any, state_in: State) -> tuple[Tensor, State]:
    """Return (S, L, H) features of `obs` (S, L, ...), and the state after them."""
    features = encoder.forward(obs)  # (S * L, F)
    return memory.forward(features.reshape(state_in["h"].shape[0], -1, features.shape[-1]), state_in)


def memory_for(num_inputs: int, config: ModuleConfig) -> Memory | None:
    """Return the recurrent layer that `use_lstm` and `use_gru` select.

    Raises:
        ValueError: both are set, or an initialiser is unknown.
    """
    if not (config.use_lstm or config.use_gru):
        return None
    if config.use_lstm and config.use_gru:
        raise ValueError("module.use_lstm and module.use_gru are both true; expected: at most one")
    kind = LSTM if config.use_lstm else GRU
    init_weight = initializer(config.lstm_kernel_initializer, config.lstm_kernel_initializer_kwargs)
    init_bias = initializer(config.lstm_bias_initializer, config.lstm_bias_initializer_kwargs)
    return kind(num_inputs, config.lstm_cell_size, init_weight, init_bias)
