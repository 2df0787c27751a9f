"""Module of CrossQ: a policy, and Q functions with batch renormalisation and without targets."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from runner.config.schemas import ModuleConfig
from runner.episodes import nested
from runner.modules.q_function_modules import SACModule
from runner.modules.q_functions import check_not_recurrent


class CrossQModule(SACModule):
    """A `SACModule` without target networks, whose Q functions evaluate s and s' in one batch.

    Args:
        observation_space, action_space, config: see `SACModule`; recurrent layers are not supported.

    Raises:
        ValueError: `critic_use_batchnorm` is false, or an option is not supported.
    """

    has_targets = False

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        check_not_recurrent(config, type(self).__name__)
        if not config.critic_use_batchnorm:
            raise ValueError("CrossQModule: module.critic_use_batchnorm is false; expected: true")
        super().__init__(observation_space, action_space, config)

    def compute_joint_q_values(self, obs: Any, actions: Any, new_obs: Any, new_actions: Any) -> tuple[Tensor, Tensor]:
        """Return Q (E, B) of s and a, and of s' and a', all (B, ...), normalised by the statistics of both together.

        The Q functions update their running statistics, which `compute_q_values` uses.
        """
        both = [
            nested.map_leaves(lambda first, second: torch.cat((first, second)), *pair)
            for pair in ((obs, new_obs), (actions, new_actions))
        ]
        joint_q = self.critic.forward_batch(*both).squeeze(-1)
        q, next_q = joint_q.chunk(2, -1)
        return q, next_q
