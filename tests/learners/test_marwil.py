"""Behaviour cloning and MARWIL against formulas written anew, row by row."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import pytest
import torch
from torch import Tensor

from runner.config.algorithms import BCConfig, MARWILConfig
from runner.learners.bc import BCLoss
from runner.learners.marwil import MARWILLoss
from runner.modules import ActorCriticModule
from tests.learners.loss_contract import CONTINUOUS, DISCRETE, LossContract
from tests.learners.offline_modules import check_gradients, make, recorded_rows, row_of

SPACES = pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])


class TestBCLossContract(LossContract):
    loss_class = BCLoss
    config = BCConfig()
    untouched = ("vf",)


class TestMARWILLossContract(LossContract):
    loss_class = MARWILLoss
    config = MARWILConfig(bc_logstd_coeff=0.1, moving_average_sqd_adv_norm_update_rate=0.1)


def log_prob(theta: Tensor, action: Tensor, space: gym.Space[Any]) -> Tensor:
    """Of one row."""
    if space is DISCRETE:
        return torch.distributions.Categorical(logits=theta[0]).log_prob(action[0])
    mean, log_std = theta[0].chunk(2)
    return torch.distributions.Normal(mean, log_std.exp()).log_prob(action[0]).sum()


@SPACES
@pytest.mark.parametrize("coeff", [0.0, 0.3])
def test_bc(space: gym.Space[Any], coeff: float) -> None:
    module, batch = make(ActorCriticModule, space), recorded_rows(space)
    terms = []
    for i in range(len(batch["obs"])):
        theta = module.forward_train(row_of(batch, i))["action_dist_inputs"]
        bonus = 0.0 if space is DISCRETE else coeff * theta[0, 2:].mean()
        terms.append(-log_prob(theta, batch["actions"][i : i + 1], space) - bonus)
    expected = torch.stack(terms).mean()
    metrics = BCLoss(BCConfig(bc_logstd_coeff=coeff))(module, batch)
    torch.testing.assert_close(metrics.total_loss, expected)
    torch.testing.assert_close(metrics.policy_loss, expected)
    check_gradients(module, metrics.total_loss, {"default": expected})


@SPACES
def test_marwil(space: gym.Space[Any]) -> None:
    config = MARWILConfig(
        beta=1.5, vf_coeff=0.7, bc_logstd_coeff=0.2, moving_average_sqd_adv_norm_start=50.0, lambda_=0.9
    )
    module, batch = make(ActorCriticModule, space), recorded_rows(space)
    policy_terms, squares = [], []
    for i in range(len(batch["obs"])):
        outputs = module.forward_train(row_of(batch, i))
        theta, value = outputs["action_dist_inputs"], outputs["vf_preds"][0]
        advantage = float(batch["value_targets"][i]) - value
        bonus = 0.0 if space is DISCRETE else 0.2 * theta[0, 2:].mean()
        weight = math.exp(1.5 * advantage.item() / math.sqrt(50.0))
        policy_terms.append(-weight * (log_prob(theta, batch["actions"][i : i + 1], space) + bonus))
        squares.append(advantage**2)
    policy_loss, mean_square = torch.stack(policy_terms).mean(), torch.stack(squares).mean()
    expected = policy_loss + 0.7 * 0.5 * mean_square
    metrics = MARWILLoss(config)(module, batch)
    torch.testing.assert_close(metrics.policy_loss, policy_loss, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(metrics.vf_loss, 0.5 * mean_square)
    torch.testing.assert_close(metrics.squared_advantages, mean_square)
    torch.testing.assert_close(metrics.total_loss, expected, rtol=1e-4, atol=1e-5)
    check_gradients(module, metrics.total_loss, {"default": expected})


@SPACES
def test_marwil_with_beta_0_clones(space: gym.Space[Any]) -> None:
    module, batch = make(ActorCriticModule, space), recorded_rows(space)
    weighted, plain = MARWILLoss(MARWILConfig(beta=0.0))(module, batch), BCLoss(BCConfig())(module, batch)
    torch.testing.assert_close(weighted.policy_loss, plain.policy_loss)
    assert weighted.mean_weight == 1.0


def test_the_average_of_squared_advantages_follows_each_update() -> None:
    loss = MARWILLoss(
        MARWILConfig(moving_average_sqd_adv_norm_start=100.0, moving_average_sqd_adv_norm_update_rate=0.1)
    )
    reported = []
    for square in (50.0, 0.0):
        reported.append(loss.coefficients()["moving_average_sqd_adv_norm"])
        loss.after_update({"squared_advantages": square})
    assert reported == pytest.approx([100.0, 95.0])
    assert loss.get_state() == {"c_squared": pytest.approx(85.5)}


def test_weights_of_huge_returns_stay_finite() -> None:
    module, batch = make(ActorCriticModule, DISCRETE), recorded_rows(DISCRETE)
    batch["value_targets"] = torch.full((30,), 1e5)
    metrics = MARWILLoss(MARWILConfig())(module, batch)
    metrics.total_loss.backward()
    assert all(bool(p.grad.square().sum().isfinite()) for p in module.pi.parameters())
