"""Recurrent layers: one step or a whole sequence, from and to a state that the caller keeps.

Dimension letters: S sequences (N when acting), L their length, F input width, H width of the memory.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.modules.mlp import Initialize, initializer

State = dict[str, Tensor]


class Memory(nn.Module):
    """One recurrent layer with torch's parameters and initialisation, U(-1/sqrt(H), 1/sqrt(H)).

    torch's functions are called on the parameters directly, which may be views of a larger vector; a single step of a
    small memory costs a third of what `nn.LSTM` takes for it.

    Args:
        num_inputs: F.
        size: H.
        init_weight, init_bias: change both weights, both biases in place after that.
    """

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
        """Go through sequences.

        Args:
            inputs: (S, L, F) float32.
            state: before the first step, name -> (S, H).

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
        """Return the parameters for torch's kernels: for cuDNN in a vector of their own, which it asks for."""
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
            train=torch.is_grad_enabled(),  # keeps what a backward pass needs
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
            train=torch.is_grad_enabled(),  # keeps what a backward pass needs
            bidirectional=False,
            batch_first=True,
        )
        return outputs, {"h": h.squeeze(0)}


def through_memory(encoder: nn.Module, memory: Memory, obs: Any, state_in: State) -> tuple[Tensor, State]:
    """Return (S, L, H) features of `obs` (S, L, ...), and the state after them."""
    features = encoder.forward(obs)  # (S * L, F)
    return memory.forward(features.reshape(state_in["h"].shape[0], -1, features.shape[-1]), state_in)


def memory_for(num_inputs: int, config: ModuleConfig) -> Memory | None:
    """Return the memory that `use_lstm` and `use_gru` ask for.

    Raises:
        ValueError: both are set, or an initialiser is unknown.
    """
    if not (config.use_lstm or config.use_gru):
        return None
    if config.use_lstm and config.use_gru:
        raise ValueError("module.use_lstm and module.use_gru are both true; allowed: one of them")
    kind = LSTM if config.use_lstm else GRU
    init_weight = initializer(config.lstm_kernel_initializer, config.lstm_kernel_initializer_kwargs)
    init_bias = initializer(config.lstm_bias_initializer, config.lstm_bias_initializer_kwargs)
    return kind(num_inputs, config.lstm_cell_size, init_weight, init_bias)
