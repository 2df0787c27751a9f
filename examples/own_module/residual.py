"""A custom module: policy and value function with residual blocks, for vector observations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.modules import RLModule


class Block(nn.Module):
    """x + W2 relu(W1 norm(x))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., width) to (..., width)."""
        return x + self.inner(x)


@dataclass(frozen=True)
class Options:
    """Valid options in `module.model_config`; a misspelt name is an error."""

    width: int = 64
    num_blocks: int = 2


class ResidualModule(RLModule):
    """One network for policy and value function.

    Args:
        observation_space, action_space: spaces between the pipelines.
        config: the block `module`; custom options are in `model_config`.
    """

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        super().__init__(observation_space, action_space, config)  # sets `action_dist` for the action space
        if not isinstance(observation_space, gym.spaces.Box) or len(observation_space.shape) != 1:
            raise TypeError(f"ResidualModule reads vectors, not {observation_space}")
        options = Options(**config.model_config)
        width, blocks = options.width, [Block(options.width) for _ in range(options.num_blocks)]
        self.body = nn.Sequential(nn.Linear(observation_space.shape[0], width), *blocks)
        self.pi = nn.Linear(width, self.action_dist.num_inputs)
        self.vf = nn.Linear(width, 1)

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute the inputs of losses: `action_dist_inputs` (B, K) and `vf_preds` (B,) from `obs` (B, D)."""
        features = self.body(batch["obs"])
        return {"action_dist_inputs": self.pi(features), "vf_preds": self.vf(features).squeeze(-1)}

    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute the inputs of the action distribution; without this method, `forward_train` is used, with values."""
        return {"action_dist_inputs": self.pi(self.body(batch["obs"]))}
