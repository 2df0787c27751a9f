"""Discrete soft actor-critic's networks (Christodoulou, 2019): a policy, and Q functions over all actions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.modules.actor_critic_module import head_options, without_mask
from runner.modules.mlp import ALL, MLP, Members
from runner.modules.observation_encoder import ObservationEncoder
from runner.modules.q_functions import QEnsemble, draw_dropout
from runner.modules.recalling_module import RecallingModule
from runner.modules.target_networks import target_of


class DiscreteSACModule(RecallingModule):
    """Policy, E Q functions with A outputs each, their targets, and the logarithm of SAC's alpha.

    Args:
        observation_space: what `ObservationEncoder` can encode, with `action_mask_key` a mask.
        action_space: Discrete.
        config: widths and activations, see `ModuleConfig`.

    Attributes:
        num_actions: A.
        log_alpha: (), of what the initial value is multiplied by.

    Raises:
        TypeError: a space that this module cannot use.
        ValueError: options that have no meaning here.
    """

    train_outputs = ("action_dist_inputs",)

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        if not isinstance(action_space, gym.spaces.Discrete):
            raise TypeError(f"DiscreteSACModule has a Q for each action: got {action_space}; allowed: Discrete")
        super().__init__(observation_space, action_space, config)
        self.num_actions = int(action_space.n)
        self._first_action, self._mask_key = int(action_space.start), config.action_mask_key
        self._dropout = config.critic_dropout
        seen, config = without_mask(self.seen_space, action_space, self._mask_key), self.head_config
        encoder = ObservationEncoder(seen, config)
        head = MLP(encoder.num_outputs, config.head_fcnet_hiddens, head_options(config), self.num_actions)
        self.actor = nn.Sequential(encoder, head)
        self.critic = QEnsemble(seen, None, config, self.num_actions)
        self.target_critic = target_of(self.critic)
        self.log_alpha = nn.Parameter(torch.zeros(()))

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return `actor`, `critic` and `alpha`."""
        return {
            "actor": list(self.actor.parameters()),
            "critic": [*self.recall_parameters(), *self.critic.parameters()],
            "alpha": [self.log_alpha],
        }

    def dist_inputs(self, obs: Any) -> Tensor:
        """Return `action_dist_inputs`, logits (B, A), of what the policy reads (B, ...); far below where a mask
        forbids.
        """
        logits: Tensor = self.actor(self.without_gradient(obs))
        return logits if self._mask_key is None else self.action_dist.masked(logits, obs[self._mask_key])

    def compute_q_values(self, obs: Any, members: Members = ALL, scales: Tensor | None = None) -> Tensor:
        """Return (M, B, A) Q of all actions in `obs` (B, ...), of the Q functions `members`, with dropout `scales`."""
        return self.critic.forward(obs, None, members, scales)

    def compute_target_q_values(self, obs: Any, members: Members = ALL, scales: Tensor | None = None) -> Tensor:
        """Return the same of the targets."""
        return self.target_critic.forward(obs, None, members, scales)

    def draw_dropout(
        self, stream: np.random.Generator, num_members: int, num_rows: int
    ) -> npt.NDArray[np.float32] | None:
        """Draw factors (num_members, num_rows, num_hidden) of hidden units; None: no dropout."""
        return draw_dropout(stream, self._dropout, (num_members, num_rows, self.critic.num_hidden))

    def q_of(self, q: Tensor, actions: Tensor) -> Tensor:
        """Return (E, B) Q of actions (B,) of the space, from Q (E, B, A)."""
        numbers = actions.long() - self._first_action
        return q.gather(-1, numbers.expand(len(q), -1).unsqueeze(-1)).squeeze(-1)

    def target_networks(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the targets of memory and Q functions, each with its network."""
        return [*super().target_networks(), (self.target_critic, self.critic)]
