"""TD3's networks (Fujimoto et al., 2018): a deterministic policy, Q functions, and targets of both."""

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
from runner.modules.target_networks import target_of

_LOG_STD = -20.0  # of a squashed Gaussian that is its mean: float32 cannot tell them apart


class TD3Module(WithQFunctions, RecallingModule):
    """Policy a = center + scale * tanh(mu(s)), Q functions, and targets of both.

    To the rest of the house the policy is a squashed Gaussian whose standard deviation is next to 0.

    Args:
        observation_space: what `ObservationEncoder` can encode.
        action_space: a bounded Box of floats, or a Dict or Tuple of them.
        config: widths and activations, see `ModuleConfig`.

    Raises:
        TypeError: a space that this module cannot use.
        ValueError: options that have no meaning here.
    """

    train_outputs = ("action_dist_inputs",)
    _is_log_std: Tensor

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        for key, allowed in (("free_log_std", False), ("action_mask_key", None)):
            if getattr(config, key) != allowed:
                raise ValueError(f"TD3Module: module.{key} is set; allowed: {'null' if allowed is None else 'false'}")
        super().__init__(observation_space, action_space, config)
        self.action_dist = self.squashed = squashed_distribution(action_space)
        is_log_std = torch.zeros(self.squashed.num_inputs, dtype=torch.bool)
        is_log_std[list(self.squashed.log_std_inputs)] = True
        self.register_buffer("_is_log_std", is_log_std, persistent=False)
        encoder = ObservationEncoder(self.seen_space, self.head_config)
        head = MLP(encoder.num_outputs, config.head_fcnet_hiddens, head_options(config), self.squashed.num_inputs)
        self.actor = nn.Sequential(encoder, head)
        self.target_actor = target_of(self.actor)
        self.add_q_functions(self.seen_space, action_space, self.head_config)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return `actor` and `critic`."""
        critic = [*self.recall_parameters(), *self.critic.parameters()]
        return {"actor": list(self.actor.parameters()), "critic": critic}

    def dist_inputs(self, obs: Any) -> Tensor:
        """Return `action_dist_inputs` (B, 2 A) of what the policy reads (B, ...)."""
        return self._dist_inputs(self.actor, self.without_gradient(obs))

    def compute_target_dist_inputs(self, obs: Any) -> Tensor:
        """Return the same of the target policy."""
        return self._dist_inputs(self.target_actor, obs)

    def target_networks(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the targets of policy, memory and Q functions, each with its network."""
        return [(self.target_actor, self.actor), *super().target_networks()]

    def _dist_inputs(self, actor: nn.Module, obs: Any) -> Tensor:
        outputs: Tensor = actor.forward(obs)
        return outputs.masked_fill(self._is_log_std, _LOG_STD)
