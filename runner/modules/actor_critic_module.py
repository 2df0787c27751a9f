"""Policy and value function for any observation and action space: encoder, recurrent layer, policy head, value head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.modules.action_masks import without_mask
from runner.modules.distributions import distribution_for
from runner.modules.gaussian import DiagGaussian
from runner.modules.layers import make_head, memory_for, through_memory
from runner.modules.observation_encoder import ObservationEncoder
from runner.modules.rl_module import RLModule
from runner.modules.state_dependent_noise import StateDependentNoise
from runner.modules.target_networks import target_of
from runner.modules.value_normalization import make_value_scale


class ActorCriticModule(RLModule):
    """Encoder (see `ObservationEncoder`), LSTM or GRU, and two heads.

    Args:
        observation_space: Box, Discrete, MultiDiscrete, MultiBinary, or Dict or Tuple of these at any depth.
        action_space: one of the same spaces.
        config: widths and activations, see `ModuleConfig`.

    Raises:
        TypeError: the module does not support a space, or a mask does not match the actions.
        ValueError: options contradict each other or the spaces.
    """

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        super().__init__(observation_space, action_space, config)
        if config.action_distribution == "beta":
            if not self.action_dist.log_std_inputs:
                what = "module.action_distribution=beta needs float actions"
                raise ValueError(f"{what}: got {action_space}; expected: gaussian")
            self.action_dist = distribution_for(action_space, float_distribution="beta")
        if config.use_sde and not isinstance(self.action_dist, DiagGaussian):
            raise ValueError(f"module.use_sde needs actions of a float Box: got {action_space}; expected: false")
        self._mask_key = config.action_mask_key
        encoded = without_mask(observation_space, action_space, config.action_mask_key)
        self._log_std_bound = config.log_std_clip_param if self.action_dist.log_std_inputs else None
        num_dist_inputs = self._add_log_stds()
        self.encoder = ObservationEncoder(encoded, config)
        self.vf_encoder = None if config.vf_share_layers else ObservationEncoder(encoded, config)
        self.memory = memory_for(self.encoder.num_outputs, config)
        self.vf_memory = None if config.vf_share_layers else memory_for(self.encoder.num_outputs, config)
        if self.memory is not None:
            self.is_stateful = True
            self.inputs = ("obs", "state_in")
            self.outputs = ("action_dist_inputs", "state_out")
        num_features = self.encoder.num_outputs if self.memory is None else self.memory.num_outputs
        self.exploration = None
        if config.use_sde:
            self.exploration = StateDependentNoise(num_features, self.action_dist.num_noise, config.initial_log_std)
            self.num_noise, self.noise_steps = self.exploration.num_noise, config.sde_sample_freq
        self.pi = make_head(num_features, config, num_dist_inputs)
        self.vf = make_head(num_features, config, 1)
        self.vf_scale = make_value_scale(config.vf_normalization, self.vf.layers)

    def get_initial_state(self) -> dict[str, Any]:
        """Return {} for a stateless module, otherwise {"h": (H,), "c": (H,)} (without "c" for a GRU).

        If policy and value function do not share layers, return {"pi": ..., "vf": ...} with two such states.
        """
        if self.memory is None:
            return {}
        if self.vf_memory is None:
            return dict(self.memory.initial_state())
        return {"pi": self.memory.initial_state(), "vf": self.vf_memory.initial_state()}

    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute `action_dist_inputs` (N, K) from `obs` (N, ...), without values.

        If stateful: (N, 1, K) and `state_out` from `obs` (N, 1, ...) and `state_in`.
        """
        obs = batch["obs"]
        outputs: dict[str, Any] = {}
        if self.memory is None:
            features = self.encoder.forward(obs)
        else:
            features, _, outputs["state_out"] = self._remember(batch)
        outputs["action_dist_inputs"] = self._dist_inputs(features, obs)
        if self.exploration is not None and "noise" in batch:
            outputs["action_noise"] = self.exploration.forward(features, batch["noise"])
        return outputs

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute `action_dist_inputs` (B, K) and `vf_preds` (B,) from `obs` (B, ...).

        If stateful: (S, L, K) and (S, L) from `obs` (S, L, ...) and `state_in`.
        """
        obs = batch["obs"]
        if self.memory is None:
            features = self.encoder.forward(obs)
            vf_features = features if self.vf_encoder is None else self.vf_encoder.forward(obs)
        else:
            features, vf_features, _ = self._remember(batch)
        return {
            "action_dist_inputs": self._dist_inputs(features, obs),
            "vf_preds": self._values(vf_features),
        }

    def compute_values(self, batch: Mapping[str, Any]) -> Tensor:
        """Return (B,) values of `obs` (B, ...); if stateful (S, L)."""
        encoder = self.encoder if self.vf_encoder is None else self.vf_encoder
        if self.memory is None:
            features = encoder.forward(batch["obs"])
        elif self.vf_memory is None:
            features, _ = through_memory(encoder, self.memory, batch["obs"], batch["state_in"])
        else:
            features, _ = through_memory(encoder, self.vf_memory, batch["obs"], batch["state_in"]["vf"])
        return self._values(features)

    def normalize_values(self, values: Tensor) -> Tensor:
        """Return values (B,) in the scale of `vf_normalization`."""
        return values if self.vf_scale is None else self.vf_scale.normalized(values)

    def update_value_scale(self, targets: Tensor) -> None:
        """Update the scale with the value targets (B,) of a train batch; the values do not change."""
        if self.vf_scale is not None:
            self.vf_scale.update(targets)

    def _values(self, features: Tensor) -> Tensor:
        values = self.vf.forward(features).squeeze(-1)
        return values if self.vf_scale is None else self.vf_scale.values(values)

    def _remember(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Return (S, L, H) features for the policy and for the value function, and the state after them."""
        assert self.memory is not None
        obs, state_in = batch["obs"], batch["state_in"]
        if self.vf_encoder is None or self.vf_memory is None:
            features, state_out = through_memory(self.encoder, self.memory, obs, state_in)
            return features, features, state_out
        features, pi_state = through_memory(self.encoder, self.memory, obs, state_in["pi"])
        vf_features, vf_state = through_memory(self.vf_encoder, self.vf_memory, obs, state_in["vf"])
        return features, vf_features, {"pi": pi_state, "vf": vf_state}

    def _add_log_stds(self) -> int:
        """Make the free log standard deviations, if any; return the number of outputs of the policy head."""
        dist = self.action_dist
        num_log_stds = len(dist.log_std_inputs)
        self._has_free_log_std = self.config.free_log_std and num_log_stds > 0
        if self.config.use_sde:
            return num_log_stds
        if self._has_free_log_std:
            self.log_std = nn.Parameter(torch.full((num_log_stds,), self.config.initial_log_std))
        if num_log_stds and not isinstance(dist, DiagGaussian):
            is_log_std = torch.zeros(dist.num_inputs, dtype=torch.bool)
            is_log_std[list(dist.log_std_inputs)] = True
            self.register_buffer("_is_log_std", is_log_std, persistent=False)
            # Position of each column among the head's outputs followed by the free log stds.
            order = torch.cat(((~is_log_std).nonzero()[:, 0], is_log_std.nonzero()[:, 0])).argsort()
            self.register_buffer("_column_order", order, persistent=False)
        return dist.num_inputs - num_log_stds if self._has_free_log_std else dist.num_inputs

    def _dist_inputs(self, features: Tensor, obs: Any) -> Tensor:
        outputs = self.pi.forward(features)
        if self.exploration is not None:
            outputs = torch.cat((outputs, self.exploration.log_std_of(features)), -1)
        if self._log_std_bound is not None:
            outputs = self._with_log_stds(outputs, self._log_std_bound)
        if self._mask_key is not None:
            outputs = self.action_dist.masked(outputs, obs[self._mask_key])
        return outputs

    def _with_log_stds(self, outputs: Tensor, bound: float) -> Tensor:
        """Return (B, K) inputs: the policy head's outputs and the free log stds, with all log stds clipped."""
        if isinstance(self.action_dist, DiagGaussian):
            if self._has_free_log_std:
                mean, log_std = outputs, self.log_std.expand_as(outputs)
            else:
                mean, log_std = outputs.chunk(2, -1)
            return torch.cat((mean, log_std.clamp(-bound, bound)), -1)
        if self._has_free_log_std:
            log_std = self.log_std.expand(*outputs.shape[:-1], -1)
            outputs = torch.cat((outputs, log_std), -1).index_select(-1, self._column_order)
        return torch.where(self._is_log_std, outputs.clamp(-bound, bound), outputs)

    _is_log_std: Tensor
    _column_order: Tensor


class APPOModule(ActorCriticModule):
    """Encoder, LSTM or GRU, and two heads, with a target network of all of them.

    Args:
        observation_space, action_space, config: see `ActorCriticModule`.

    Attributes:
        target: target network, an `ActorCriticModule`.
    """

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        super().__init__(observation_space, action_space, config)
        self.target = target_of(self)

    def target_networks(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return each component of the target, with the component that it follows."""
        parts = dict(self.named_children())
        pairs: list[tuple[nn.Module, nn.Module]] = [(part, parts[name]) for name, part in self.target.named_children()]
        if self._has_free_log_std:
            pairs.append((nn.ParameterList([self.target.log_std]), nn.ParameterList([self.log_std])))
        return pairs
