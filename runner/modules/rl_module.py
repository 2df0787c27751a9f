"""The RLModule protocol: three forward passes, a value function, and an action distribution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.modules.distributions import ActionDistribution, distribution_for


class RLModule(nn.Module):
    """A policy network with what runners and learners ask of it. Subclass it and override `forward_train`.

    Args:
        observation_space: space of the observations after the env-to-module pipeline.
        action_space: space of the actions before the module-to-env pipeline.
        config: the `module` block; `config.model_config` holds free arguments of your own class.

    Attributes:
        action_dist: distribution that `action_dist_inputs` parametrise.
        is_stateful: whether the module carries memory from step to step.
    """

    # Columns that the forward passes write; pieces of the module-to-env pipeline and the loss may read them.
    outputs: tuple[str, ...] = ("action_dist_inputs",)
    is_stateful = False

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        super().__init__()
        self.observation_space = observation_space
        self.action_space = action_space
        self.config = config
        self.action_dist: ActionDistribution = distribution_for(action_space)

    def forward_inference(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Outputs for acting greedily: `action_dist_inputs` (N, K) from `obs` (N, ...)."""
        return self.forward_exploration(batch)

    def forward_exploration(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Outputs for acting while training: `action_dist_inputs` (N, K) from `obs` (N, ...)."""
        return {"action_dist_inputs": self.forward_train(batch)["action_dist_inputs"]}

    def forward_train(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Outputs for the loss: `action_dist_inputs` (B, K) and `vf_preds` (B,) from `obs` (B, ...)."""
        raise NotImplementedError(f"{type(self).__name__} has no forward_train")

    def compute_values(self, batch: Mapping[str, Tensor]) -> Tensor:
        """(B,) values of `obs` (B, ...)."""
        return self.forward_train(batch)["vf_preds"]
