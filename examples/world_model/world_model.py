"""SAC that also learns from steps of a learned model: the model, its loss, and an operator that makes the steps.

The idea is MBPO's (Janner et al., 2019, https://arxiv.org/abs/1906.08253), with imagined rollouts of a single step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from runner.config.algorithms import AlgorithmConfig, LossMetrics
from runner.config.fields import option
from runner.learners.loss import Loss
from runner.modules import RLModule
from runner.plans import Experiences, Operator, PlanContext
from runner.streams import random_stream


class WorldModel(RLModule):
    """An ensemble of networks that predict the change of the observation and the reward of a step."""

    train_outputs = ("predictions",)
    inputs = ("obs", "actions")

    def __init__(self, observation_space: Any, action_space: Any, config: Any) -> None:
        super().__init__(observation_space, action_space, config)
        num_obs, width = observation_space.shape[0], config.fcnet_hiddens[0]
        sizes = num_obs + action_space.shape[0], width, width, num_obs + 1
        self.members = nn.ModuleList(
            nn.Sequential(
                nn.Linear(sizes[0], width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, sizes[-1])
            )
            for _ in range(config.model_config["num_members"])
        )

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the predictions (B, members, D + 1): the change of each observation (D), then the reward."""
        inputs = torch.cat((batch["obs"], batch["actions"]), -1)
        return {"predictions": torch.stack([member(inputs) for member in self.members], 1)}


@dataclass(frozen=True)
class WorldModelMetrics(LossMetrics):
    """Metrics of a gradient step in addition to `total_loss`."""

    reward_error: Any


@dataclass(frozen=True)
class WorldModelConfig(AlgorithmConfig):
    """Fields of the block `algorithm` of the world model."""

    lr: float = option(1e-3, "learning rate", above=0)

    metrics: ClassVar[type[LossMetrics]] = WorldModelMetrics


class WorldModelLoss(Loss):
    """Mean squared error of the predictions of all members."""

    reads = ("obs", "actions", "rewards", "new_obs")
    needs = ("predictions",)

    def __init__(self, config: WorldModelConfig) -> None:
        """Keep nothing: the loss does not have options."""

    def __call__(self, module: RLModule, batch: Mapping[str, Any], is_reporting: bool = True) -> WorldModelMetrics:
        """Return the loss and the error of the rewards."""
        predictions = module.forward_train(batch)["predictions"]
        outcomes = torch.cat((batch["new_obs"] - batch["obs"], batch["rewards"].unsqueeze(-1)), -1)
        errors = (predictions - outcomes.unsqueeze(1)).square()
        return WorldModelMetrics(errors.mean(), reward_error=errors[..., -1].mean())


class ImagineSteps(Operator):
    """Pass each item through, followed by an item of imagined steps from the same observations.

    The policy draws the actions, and a random member of the model predicts the outcome of each step.
    """

    takes = ("Experiences",)
    gives = ("Experiences",)
    needs = ("learners",)
    state = ("_stream",)

    def __init__(self, context: PlanContext) -> None:
        super().__init__(context)
        self._stream = random_stream(context.config.seed, "imagined_steps")

    def transform(self, item: Experiences) -> list[Experiences]:
        """Return the replayed steps and the imagined ones."""
        modules = self.context.learners.modules
        policy, model = modules["default_policy"], modules["world_model"]
        [steps] = item.rollout.blocks.values()
        device = next(model.parameters()).device
        obs = torch.from_numpy(steps.columns["obs"][steps.first_obs_rows]).to(device)
        with torch.no_grad():
            inputs = policy.forward_exploration({"obs": obs})["action_dist_inputs"]
            noise = torch.from_numpy(policy.action_dist.draw_noise(self._stream, (len(obs),))).to(device)
            actions = policy.action_dist.sample(inputs, noise)
            predictions = model.forward_train({"obs": obs, "actions": actions})["predictions"]
        members = torch.from_numpy(self._stream.integers(predictions.shape[1], size=len(obs))).to(device)
        outcomes = predictions[torch.arange(len(obs), device=device), members]
        columns = {"obs": obs, "actions": actions, "new_obs": obs + outcomes[:, :-1], "rewards": outcomes[:, -1]}
        imagined = {name: column.cpu().numpy() for name, column in columns.items()}
        return [item, Experiences.from_columns(imagined, np.zeros(len(obs), np.bool_))]
