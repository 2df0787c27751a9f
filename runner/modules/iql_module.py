"""Policy, value function and Q functions, with no layer in common."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from torch import nn

from runner.config.schemas import ModuleConfig
from runner.modules.actor_critic_module import ActorCriticModule, without_mask
from runner.modules.q_functions import WithQFunctions, refuse_memory


class IQLModule(WithQFunctions, ActorCriticModule):
    """An `ActorCriticModule` with Q functions and their targets, for any observation and action space.

    Args:
        observation_space, action_space, config: see `ActorCriticModule`.

    Raises:
        TypeError: a space that cannot be encoded.
        ValueError: options that contradict each other or the spaces, memory, or shared layers.
    """

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        refuse_memory(config, "IQLModule")
        if config.vf_share_layers:
            raise ValueError("IQLModule learns V on its own: module.vf_share_layers is true; allowed: false")
        super().__init__(observation_space, action_space, config)
        self.add_q_functions(
            without_mask(observation_space, action_space, config.action_mask_key), action_space, config
        )

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return `actor`, `critic` and `value`."""
        assert self.vf_encoder is not None
        groups = {
            "critic": list(self.critic.parameters()),
            "value": [*self.vf_encoder.parameters(), *self.vf.parameters()],
        }
        others = {id(parameter) for group in groups.values() for parameter in group}
        learned = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return {"actor": [parameter for parameter in learned if id(parameter) not in others], **groups}
