"""MultiRLModules for tests: a critic for all modules, an encoder that they share, and a pass that counts its calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from runner.modules import MultiRLModule, RLModule

Batches = Mapping[str, Mapping[str, Any]]


class SharedCritic(MultiRLModule):
    """One value function of what all agents saw."""

    train_inputs = ("obs_of_agents", "agents_mask")

    def __init__(self, modules: Mapping[str, RLModule], hidden: int = 16, num_agents: int = 2) -> None:
        super().__init__(modules)
        width = next(iter(modules.values())).observation_space.shape[0]  # type: ignore[index]
        self.critic = nn.Sequential(nn.Linear(num_agents * (width + 1), hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward_train(self, batches: Batches) -> dict[str, dict[str, Any]]:
        outputs, values = super().forward_train(batches), self.compute_values(batches)
        return {module_id: outputs[module_id] | {"vf_preds": values[module_id]} for module_id in batches}

    def compute_values(self, batches: Batches) -> dict[str, Tensor]:
        return {module_id: self._values(batch) for module_id, batch in batches.items()}

    def _values(self, batch: Mapping[str, Any]) -> Tensor:
        seen = torch.cat([*batch["obs_of_agents"].values(), batch["agents_mask"].float()], -1)
        values: Tensor = self.critic(seen).squeeze(-1)
        return values


class SharedEncoder(MultiRLModule):
    """Modules that have the encoder of the first one."""

    def __init__(self, modules: Mapping[str, RLModule]) -> None:
        super().__init__(modules)
        first, *others = modules.values()
        for module in others:
            module.encoder = first.encoder


class Counting(MultiRLModule):
    """Notes how many modules each pass is of."""

    def __init__(self, modules: Mapping[str, RLModule]) -> None:
        super().__init__(modules)
        self.num_modules: list[int] = []

    def forward_exploration(self, batches: Batches) -> dict[str, dict[str, Any]]:
        self.num_modules.append(len(batches))
        return super().forward_exploration(batches)


class Unreadable(MultiRLModule):
    """Reads a column that nobody writes."""

    train_inputs = ("messages",)


class Refusing(MultiRLModule):
    """Cannot be made of these modules."""

    def __init__(self, modules: Mapping[str, RLModule]) -> None:
        raise ValueError("these modules do not go together")


class ActsTogether(SharedEncoder):
    """Computes the actions of all modules itself."""

    def forward_inference(self, batches: Batches) -> dict[str, dict[str, Any]]:
        return super().forward_exploration(batches)
