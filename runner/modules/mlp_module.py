"""Multi-layer perceptrons: encoder, policy head, value head."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import gymnasium as gym
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.modules.rl_module import RLModule

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor] | None] = {
    "tanh": torch.tanh,
    "relu": F.relu,
    "silu": F.silu,
    "elu": F.elu,
    "gelu": F.gelu,
    "linear": None,
}


class MLP(nn.Module):
    """Linear layers with an activation after each hidden one.

    For the few rows of a vector step most of a layer's time is the call of `nn.Module`, so the layers' parameters are
    used directly.

    Args:
        num_inputs: width of the input.
        hiddens: widths of the hidden layers.
        activation: name of the activation after each hidden layer.
        num_outputs: width of a last layer without activation; None: the last hidden layer is the output.
        init: changes a layer's weights in place after torch's own initialisation.
    """

    def __init__(
        self,
        num_inputs: int,
        hiddens: Sequence[int],
        activation: str,
        num_outputs: int | None = None,
        init: Callable[[Tensor], object] | None = None,
    ) -> None:
        super().__init__()
        widths = [num_inputs, *hiddens, *([] if num_outputs is None else [num_outputs])]
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))
        self.num_outputs = widths[-1]
        linears = [layer for layer in self.layers if isinstance(layer, nn.Linear)]
        if init is not None:
            for layer in linears:
                init(layer.weight)
        hidden_activation = _ACTIVATIONS[activation]
        activations = [hidden_activation] * len(hiddens) + [None] * (num_outputs is not None)
        self._chain = tuple(
            (layer.weight, layer.bias, activate) for layer, activate in zip(linears, activations, strict=True)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, num_inputs) -> (B, num_outputs)."""
        for weight, bias, activate in self._chain:
            inputs = F.linear(inputs, weight, bias)
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
        encoder_init = _initializer(config.fcnet_kernel_initializer, config.fcnet_kernel_initializer_kwargs)
        head_init = _initializer(config.head_fcnet_kernel_initializer, config.head_fcnet_kernel_initializer_kwargs)

        def encoder() -> MLP:
            return MLP(num_inputs, config.fcnet_hiddens, config.fcnet_activation, init=encoder_init)

        def head(encoder: MLP, num_outputs: int) -> MLP:
            activation = config.head_fcnet_activation
            return MLP(encoder.num_outputs, config.head_fcnet_hiddens, activation, num_outputs, head_init)

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
        return obs if obs.ndim == 2 else obs.flatten(1)

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


def _initializer(name: str | None, kwargs: Mapping[str, Any]) -> Callable[[Tensor], object] | None:
    """The function `name` of torch.nn.init with `kwargs`, None for torch's own initialisation."""
    if name is None:
        return None
    names = [n for n in dir(nn.init) if n.endswith("_") and not n.startswith("_")]
    if name not in names:
        raise ValueError(f"no initialiser {name!r} in torch.nn.init; allowed: {', '.join(names)}")
    initialise = getattr(nn.init, name)
    return lambda weight: initialise(weight, **kwargs)
