"""A custom module with memory: policy and value function attend over the last observations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.modules import RLModule


@dataclass(frozen=True)
class Options:
    """Valid options in `module.model_config`."""

    num_slots: int = 16
    width: int = 32


class AttentionModule(RLModule):
    """One attention head over the last M encoded observations, which are the recurrent state.

    Dimension letters: S sequences of length L (when acting, N sub-environments and L = 1), D width of an observation,
    W width of a feature, K width of `action_dist_inputs`, M slots.
    """

    is_stateful = True
    inputs = ("obs", "state_in")
    outputs = ("action_dist_inputs", "state_out")

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        super().__init__(observation_space, action_space, config)
        options = Options(**config.model_config)
        self.num_slots, width = options.num_slots, options.width
        self.encoder = nn.Linear(gym.spaces.flatdim(observation_space), width)
        self.positions = nn.Parameter(0.1 * torch.randn(self.num_slots, width))
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.pi = nn.Linear(2 * width, self.action_dist.num_inputs)
        self.vf = nn.Linear(2 * width, 1)

    def get_initial_state(self) -> dict[str, Tensor]:
        """Return an empty memory (M, W) and a mask of its used slots (M,), both float32."""
        return {
            "memory": torch.zeros(self.num_slots, self.encoder.out_features),
            "is_used": torch.zeros(self.num_slots),
        }

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute `action_dist_inputs` (S, L, K) and `vf_preds` (S, L) from `obs` (S, L, D) and `state_in`."""
        features, _ = self._features(batch)
        return {"action_dist_inputs": self.pi(features), "vf_preds": self.vf(features).squeeze(-1)}

    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute `action_dist_inputs` (N, 1, K) and `state_out`, which is `state_in` of the next step."""
        features, state_out = self._features(batch)
        return {"action_dist_inputs": self.pi(features), "state_out": state_out}

    def _features(self, batch: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return features (S, L, 2 W) and the state after the last step."""
        encoded, state = torch.tanh(self.encoder(batch["obs"])), batch["state_in"]  # (S, L, W)
        memory = torch.cat((state["memory"], encoded), 1)  # (S, M + L, W)
        is_used = torch.cat((state["is_used"], torch.ones_like(encoded[..., 0])), 1)
        seen = memory.unfold(1, self.num_slots, 1)[:, 1:].mT + self.positions  # (S, L, M, W), up to each step
        mask = is_used.unfold(1, self.num_slots, 1)[:, 1:] > 0  # (S, L, M)
        query = self.query(encoded).unsqueeze(-2)
        attended = F.scaled_dot_product_attention(query, self.key(seen), self.value(seen), mask.unsqueeze(-2))
        state_out = {"memory": memory[:, -self.num_slots :], "is_used": is_used[:, -self.num_slots :]}
        return torch.cat((encoded, attended.squeeze(-2)), -1), state_out
