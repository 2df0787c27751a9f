"""An actor-critic with a target: an older policy that its updates stay close to."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from torch import nn

from runner.config.schemas import ModuleConfig
from runner.modules.actor_critic_module import ActorCriticModule
from runner.modules.target_networks import target_of


class APPOModule(ActorCriticModule):
    """Encoder, LSTM or GRU, and two heads, with a target of all of them.

    Args:
        observation_space, action_space, config: see `ActorCriticModule`.

    Attributes:
        target: an `ActorCriticModule` that follows this one.
    """

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        super().__init__(observation_space, action_space, config)
        self.target = target_of(self)

    def target_networks(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return each part of the target, and the part that it follows."""
        parts = dict(self.named_children())
        pairs: list[tuple[nn.Module, nn.Module]] = [(part, parts[name]) for name, part in self.target.named_children()]
        if self._has_free_log_std:
            pairs.append((nn.ParameterList([self.target.log_std]), nn.ParameterList([self.log_std])))
        return pairs
