"""A Q function over all discrete actions, and its target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.modules.actor_critic_module import head_options, without_mask
from runner.modules.mlp import MLP
from runner.modules.observation_encoder import ObservationEncoder
from runner.modules.q_functions import refuse_memory
from runner.modules.rl_module import RLModule
from runner.modules.target_networks import target_of


class DoubleQModule(RLModule):
    """Q(s, .) and its target; acts greedily, or with probabilities softmax(Q) when it explores.

    Args:
        observation_space: what `ObservationEncoder` can encode, with `action_mask_key` a mask.
        action_space: Discrete.
        config: widths and activations, see `ModuleConfig`.

    Raises:
        TypeError: a space that this module cannot use.
        ValueError: memory.
    """

    train_outputs = ("action_dist_inputs", "qf_preds")

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        refuse_memory(config, "DoubleQModule")
        if not isinstance(action_space, gym.spaces.Discrete):
            raise TypeError(f"DoubleQModule has a Q for each action: got {action_space}; allowed: Discrete")
        super().__init__(observation_space, action_space, config)
        self._mask_key = config.action_mask_key
        self._first_action = int(action_space.start)
        encoder = ObservationEncoder(without_mask(observation_space, action_space, self._mask_key), config)
        head = MLP(encoder.num_outputs, config.head_fcnet_hiddens, head_options(config), int(action_space.n))
        self.qf = nn.Sequential(encoder, head)
        self.target_qf = target_of(self.qf)

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute `qf_preds` (B, A), also `action_dist_inputs`, of `obs` (B, ...); far below where a mask forbids."""
        q = self._masked(self.qf(batch["obs"]), batch["obs"])
        return {"action_dist_inputs": q, "qf_preds": q}

    def forward_target(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute `qf_preds` (B, A) of the target."""
        return {"qf_preds": self._masked(self.target_qf(batch["obs"]), batch["obs"])}

    def q_of(self, q: Tensor, actions: Tensor) -> Tensor:
        """Return (B,) Q of actions (B,) of the space, from `qf_preds`."""
        return q.gather(-1, (actions.long() - self._first_action).unsqueeze(-1)).squeeze(-1)

    def target_networks(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return Q's target and Q."""
        return [(self.target_qf, self.qf)]

    def _masked(self, q: Tensor, obs: Any) -> Tensor:
        return q if self._mask_key is None else self.action_dist.masked(q, obs[self._mask_key])
