"""Multi-layer perceptrons: encoder, policy head, value head."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import gymnasium as gym
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.modules.rl_module import RLModule

Activation = Callable[[Tensor], Tensor]
Initialize = Callable[[Tensor], object]

_ACTIVATIONS: dict[str, Activation | None] = {
    "tanh": torch.tanh,
    "relu": F.relu,
    "silu": F.silu,
    "elu": F.elu,
    "gelu": F.gelu,
    "linear": None,
}


@dataclass(frozen=True)
class LayerOptions:
    """What the layers of a perceptron have in common.

    Attributes:
        activation: name of the activation after each hidden layer.
        use_layernorm: normalise before each activation.
        init_weight, init_bias: change a layer's parameters in place after torch's own initialisation.
    """

    activation: str
    use_layernorm: bool = False
    init_weight: Initialize | None = None
    init_bias: Initialize | None = None


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
            if options.init_weight is not None:
                options.init_weight(layer.weight)
            if options.init_bias is not None:
                options.init_bias(layer.bias)
            is_hidden = number < len(hiddens)
            norm = nn.LayerNorm(next_width) if is_hidden and options.use_layernorm else None
            if norm is not None:
                self.norms.append(norm)
            activate = _ACTIVATIONS[options.activation] if is_hidden else None
            chain.append((layer.weight, layer.bias, norm, activate))
        self._chain = tuple(chain)

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, num_inputs) -> (B, num_outputs)."""
        for weight, bias, norm, activate in self._chain:
            inputs = F.linear(inputs, weight, bias)
            if norm is not None:
                inputs = norm(inputs)
            if activate is not None:
                inputs = activate(inputs)
        return inputs


class MLPModule(RLModule):
    """Policy and value function as perceptrons, for Box and Discrete observations, Discrete and Box actions.

    Args:
        observation_space: a Box (flattened) or Discrete (one-hot) space.
        action_space: Discrete, or a Box of floats (Gaussian with a state-dependent or free log std).
        config: widths and activations, see `ModuleConfig`.

    Raises:
        TypeError: a space that this module cannot encode.
    """

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        super().__init__(observation_space, action_space, config)
        num_inputs = _encoded_size(observation_space)
        self._num_classes = num_inputs if isinstance(observation_space, gym.spaces.Discrete) else None
        encoder_options = LayerOptions(
            config.fcnet_activation,
            config.fcnet_use_layernorm,
            _initializer(config.fcnet_kernel_initializer, config.fcnet_kernel_initializer_kwargs),
            _initializer(config.fcnet_bias_initializer, config.fcnet_bias_initializer_kwargs),
        )
        head_options = LayerOptions(
            config.head_fcnet_activation,
            config.head_fcnet_use_layernorm,
            _initializer(config.head_fcnet_kernel_initializer, config.head_fcnet_kernel_initializer_kwargs),
            _initializer(config.head_fcnet_bias_initializer, config.head_fcnet_bias_initializer_kwargs),
        )

        def encoder() -> MLP:
            return MLP(num_inputs, config.fcnet_hiddens, encoder_options)

        def head(encoder: MLP, num_outputs: int) -> MLP:
            return MLP(encoder.num_outputs, config.head_fcnet_hiddens, head_options, num_outputs)

        num_dist_inputs = self.action_dist.num_inputs
        self._has_free_log_std = config.free_log_std and isinstance(action_space, gym.spaces.Box)
        if self._has_free_log_std:
            num_dist_inputs //= 2
            self.log_std = nn.Parameter(torch.zeros(num_dist_inputs))
        self._log_std_bound = config.log_std_clip_param if isinstance(action_space, gym.spaces.Box) else None
        self.encoder = encoder()
        self.vf_encoder = None if config.vf_share_layers else encoder()
        self.pi = head(self.encoder, num_dist_inputs)
        self.vf = head(self.encoder, 1)

    def forward_exploration(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`action_dist_inputs` (N, K) from `obs` (N, ...); no value is computed."""
        return {"action_dist_inputs": self._dist_inputs(self.encoder.forward(self._encoded(batch["obs"])))}

    def forward_train(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`action_dist_inputs` (B, K) and `vf_preds` (B,) from `obs` (B, ...)."""
        obs = self._encoded(batch["obs"])
        features = self.encoder.forward(obs)
        vf_features = features if self.vf_encoder is None else self.vf_encoder.forward(obs)
        return {
            "action_dist_inputs": self._dist_inputs(features),
            "vf_preds": self.vf.forward(vf_features).squeeze(-1),
        }

    def compute_values(self, batch: Mapping[str, Tensor]) -> Tensor:
        """(B,) values of `obs` (B, ...)."""
        encoder = self.encoder if self.vf_encoder is None else self.vf_encoder
        return self.vf.forward(encoder.forward(self._encoded(batch["obs"]))).squeeze(-1)

    def _encoded(self, obs: Tensor) -> Tensor:
        if self._num_classes is not None:
            return F.one_hot(obs, self._num_classes).float()
        if obs.dtype != torch.float32:
            obs = obs.float()
        return obs if obs.ndim == 2 else obs.reshape(len(obs), -1)

    def _dist_inputs(self, features: Tensor) -> Tensor:
        outputs = self.pi.forward(features)
        if self._log_std_bound is None:
            return outputs
        if self._has_free_log_std:
            mean, log_std = outputs, self.log_std.expand_as(outputs)
        else:
            mean, log_std = outputs.chunk(2, -1)
        return torch.cat((mean, log_std.clamp(-self._log_std_bound, self._log_std_bound)), -1)


def _encoded_size(space: gym.Space[Any]) -> int:
    if isinstance(space, gym.spaces.Discrete) and space.start == 0:
        return int(space.n)
    if isinstance(space, gym.spaces.Box):
        return math.prod(space.shape)
    raise TypeError(f"MLPModule cannot encode observations of {space}; supported: Box, Discrete from 0")


def _initializer(name: str | None, kwargs: Mapping[str, Any]) -> Initialize | None:
    """The function `name` of torch.nn.init with `kwargs`, None for torch's own initialisation."""
    if name is None:
        return None
    names = [n for n in dir(nn.init) if n.endswith("_") and not n.startswith("_")]
    if name not in names:
        raise ValueError(f"no initialiser {name!r} in torch.nn.init; allowed: {', '.join(names)}")
    initialise = getattr(nn.init, name)
    return lambda weight: initialise(weight, **kwargs)
