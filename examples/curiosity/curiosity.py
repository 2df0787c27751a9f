"""A bonus for unfamiliar observations, from a network that learns next to the policy.

This is random network distillation (Burda et al., 2018, https://arxiv.org/abs/1810.12894) without its normalisation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from runner.config.algorithms import AlgorithmConfig, LossMetrics
from runner.config.fields import option
from runner.learners.loss import Loss
from runner.modules import RLModule
from runner.plans import Experiences, Operator, PlanContext


class Curiosity(RLModule):
    """Predicts the outputs of a fixed random network. The error is large for observations that it has rarely seen."""

    train_outputs = ("errors",)

    def __init__(self, observation_space: Any, action_space: Any, config: Any) -> None:
        super().__init__(observation_space, action_space, config)
        num_inputs, width = observation_space.shape[0], config.fcnet_hiddens[0]
        self.fixed, self.predictor = (
            nn.Sequential(nn.Linear(num_inputs, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(2)
        )
        self.fixed.requires_grad_(False)

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the squared error (B,) of the prediction for each observation (B, D)."""
        return {"errors": (self.predictor(batch["obs"]) - self.fixed(batch["obs"])).square().mean(-1)}


@dataclass(frozen=True)
class CuriosityConfig(AlgorithmConfig):
    """Fields of the block `algorithm` of the module."""

    lr: float = option(1e-3, "learning rate", above=0)


class CuriosityLoss(Loss):
    """Mean squared error of the predictor."""

    reads = ("obs",)
    needs = ("errors",)

    def __init__(self, config: CuriosityConfig) -> None:
        """Keep nothing: the loss does not have options."""

    def __call__(self, module: RLModule, batch: Mapping[str, Any], is_reporting: bool = True) -> LossMetrics:
        """Return the loss of a minibatch."""
        return LossMetrics(module.outputs_at_steps(batch)["errors"].mean())


class AddCuriosity(Operator):
    """Add the error of module `curiosity` for the observation after each step to the step's reward.

    Args:
        scale: factor of the error.
    """

    takes = ("Experiences",)
    gives = ("Experiences",)
    needs = ("learners",)
    reports = {"bonus": ("mean", "bonus of a step")}  # noqa: RUF012

    def __init__(self, context: PlanContext, scale: float = 1.0) -> None:
        super().__init__(context)
        self._scale = scale

    def transform(self, item: Experiences) -> list[Experiences]:
        """Return the item with other rewards."""
        module = self.context.learners.modules["curiosity"]
        device, changed = next(module.parameters()).device, {}
        for module_id, steps in item.rollout.blocks.items():
            new_obs = torch.from_numpy(steps.columns["obs"][steps.obs_rows + 1]).to(device)  # (R, D)
            with torch.no_grad():
                bonus = self._scale * module.forward_train({"obs": new_obs})["errors"].cpu().numpy()
            self.metrics.report("bonus", float(bonus.mean()), len(bonus))
            changed[module_id] = {"rewards": steps.columns["rewards"] + bonus}
        return [item.with_columns(changed)]
