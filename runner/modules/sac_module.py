"""Soft actor-critic's networks (Haarnoja et al., 2018): a squashed Gaussian policy, Q functions, temperatures."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.modules.actor_critic_module import head_options
from runner.modules.distributions import squashed_distribution
from runner.modules.mlp import MLP
from runner.modules.observation_encoder import ObservationEncoder
from runner.modules.q_functions import WithQFunctions
from runner.modules.recalling_module import RecallingModule

_MAX_LOG_STD = 2.0  # as in the authors' code; before the tanh


class SACModule(WithQFunctions, RecallingModule):
    """Policy, Q functions with targets, and the logarithms of SAC's alpha and CQL's alpha'.

    Args:
        observation_space: what `ObservationEncoder` can encode.
        action_space: a bounded Box of floats, or a Dict or Tuple of them.
        config: widths and activations, see `ModuleConfig`.

    Attributes:
        log_alpha, log_alpha_prime: (), of what the initial values are multiplied by.

    Raises:
        TypeError: a space that this module cannot use.
        ValueError: options that have no meaning here.
    """

    train_outputs = ("action_dist_inputs",)
    _is_log_std: Tensor

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        for key, allowed in (("free_log_std", False), ("action_mask_key", None)):
            if getattr(config, key) != allowed:
                raise ValueError(f"SACModule: module.{key} is set; allowed: {'null' if allowed is None else 'false'}")
        super().__init__(observation_space, action_space, config)
        self.action_dist = self.squashed = squashed_distribution(action_space)
        self.encoder = ObservationEncoder(self.seen_space, self.head_config)
        num_dist_inputs = self.squashed.num_inputs
        is_log_std = torch.zeros(num_dist_inputs, dtype=torch.bool)
        is_log_std[list(self.squashed.log_std_inputs)] = True
        self.register_buffer("_is_log_std", is_log_std, persistent=False)
        self.pi = MLP(self.encoder.num_outputs, config.head_fcnet_hiddens, head_options(config), num_dist_inputs)
        self.add_q_functions(self.seen_space, action_space, self.head_config)
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.log_alpha_prime = nn.Parameter(torch.zeros(()))

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return `actor`, `critic` and `alpha`."""
        return {
            "actor": [*self.encoder.parameters(), *self.pi.parameters()],
            "critic": [*self.recall_parameters(), *self.critic.parameters()],
            "alpha": [self.log_alpha, self.log_alpha_prime],
        }

    def dist_inputs(self, obs: Any) -> Tensor:
        """Return `action_dist_inputs` (B, 2 A) of what the policy reads (B, ...); log stds are clamped."""
        outputs: Tensor = self.pi.forward(self.encoder.forward(self.without_gradient(obs)))
        clamped = outputs.clamp(-self.config.log_std_clip_param, _MAX_LOG_STD)
        return torch.where(self._is_log_std, clamped, outputs)
