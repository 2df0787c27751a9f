"""Optimisers from the configuration: equal to torch's on an ordinary module, and go on from a state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from runner.config.algorithms import BCConfig, IQLConfig
from runner.config.errors import ConfigError
from runner.config.optimizer import OptimizerConfig
from runner.learners.bc import BCLoss
from runner.learners.iql import IQLLoss
from runner.modules import ActorCriticModule, IQLModule
from tests.learners.loss_contract import CONTINUOUS, DISCRETE
from tests.learners.offline_modules import make, recorded_rows
from tests.learners.test_optimizers import Case, assert_goes_on

ADAM = torch.optim.Adam
CASES: dict[str, tuple[OptimizerConfig, type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adam": (
        OptimizerConfig(epsilon=1e-3, betas=[0.5, 0.9], weight_decay=0.1),
        ADAM,
        {"eps": 1e-3, "betas": (0.5, 0.9), "weight_decay": 0.1},
    ),
    "radam": (OptimizerConfig("radam", betas=[0.7, 0.9]), torch.optim.RAdam, {"betas": (0.7, 0.9)}),
    "adamw": (OptimizerConfig("adamw", betas=[0.7, 0.9]), torch.optim.AdamW, {"betas": (0.7, 0.9)}),
    "rmsprop": (
        OptimizerConfig("rmsprop", epsilon=1e-5, alpha=0.9, momentum=0.5),
        torch.optim.RMSprop,
        {"eps": 1e-5, "alpha": 0.9, "momentum": 0.5},
    ),
    "sgd": (OptimizerConfig("sgd"), torch.optim.SGD, {}),
    "sgd with momentum": (
        OptimizerConfig("sgd", momentum=0.9, weight_decay=0.01),
        torch.optim.SGD,
        {"momentum": 0.9, "weight_decay": 0.01},
    ),
    "one's own": (
        OptimizerConfig(_target_="torch.optim.NAdam", arguments={"eps": 1e-4}),
        torch.optim.NAdam,
        {"eps": 1e-4},
    ),
    "by shapes": (
        OptimizerConfig(_target_="torch.optim.Adafactor", arguments={"d": 2.0}),
        torch.optim.Adafactor,
        {"d": 2.0},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_optimiser_is_torchs_on_an_ordinary_module(name: str) -> None:
    config, optimizer_class, options = CASES[name]
    algorithm = BCConfig(lr=[[0, 1e-2], [10, 1e-3]], minibatching="time_ordered", optimizer=config)
    learner = Case(BCLoss, algorithm, ActorCriticModule, DISCRETE).learner()
    module, loss = make(ActorCriticModule, DISCRETE), BCLoss(algorithm)
    optimizer = optimizer_class(module.parameters(), **options)
    for step in range(10):
        batch = recorded_rows(DISCRETE, seed=step)
        lr = learner.update(batch, step).metrics["default_optimizer_learning_rate"]
        assert lr == pytest.approx(1e-2 - step * 9e-4)
        for group in optimizer.param_groups:
            group["lr"] = lr
        for parameter in module.parameters():  # a learner's gradients are never None
            parameter.grad = torch.zeros_like(parameter)
        loss(module, batch).total_loss.backward()
        optimizer.step()
    for ours, theirs in zip(learner.module.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_several_groups_and_going_on_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    config = IQLConfig(actor_lr=1e-2, critic_lr=0.0, value_lr=[[0, 1e-2], [5, 0.0]], optimizer=CASES[name][0])
    case = Case(IQLLoss, replace(config, optimizer=replace(config.optimizer, weight_decay=None)), IQLModule, CONTINUOUS)
    straight = case.learner()
    critic = [parameter.clone() for parameter in straight.module.parameter_groups()["critic"]]
    metrics = assert_goes_on(case, straight, tmp_path)
    assert metrics["value_optimizer_learning_rate"] == 0.0
    for before, after in zip(critic, straight.module.parameter_groups()["critic"], strict=True):
        assert torch.equal(before, after), "a learning rate of 0 holds its group"


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (OptimizerConfig(_target_="torch.optim.LBFGS"), "evaluates the loss several times per step"),
        (OptimizerConfig(_target_="torch.optim.RAdam", arguments={"betas": [2.0, 0.9]}), "Invalid beta parameter"),
        (OptimizerConfig(_target_="torch.nn.Linear"), "torch.nn.Linear"),
    ],
)
def test_a_class_that_cannot_be_used(config: OptimizerConfig, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Case(BCLoss, BCConfig(optimizer=config), ActorCriticModule, DISCRETE).learner()
