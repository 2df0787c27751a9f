"""REINFORCE's gradient in closed form, with and without a baseline, and a small environment learned in seconds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from runner.config.algorithms import PGConfig
from runner.learners.pg import PGLoss
from tests.learners.linear_module import linear_module, policy_gradient, value_gradient, values
from tests.learners.loss_contract import LossContract
from tests.learners.toy_mdps import steps_to_the_end


class PGLossContract(LossContract):
    loss_class = PGLoss


class TestPGLossContract(PGLossContract):
    config = PGConfig(use_baseline=True)


class TestPGLossContractWithoutBaseline(PGLossContract):
    config = PGConfig(entropy_coeff=0.01)
    untouched = ("vf.",)


@pytest.mark.parametrize("entropy_coeff", [0.0, 0.3])
@pytest.mark.parametrize("use_baseline", [False, True])
def test_gradient_in_closed_form(use_baseline: bool, entropy_coeff: float) -> None:
    module, stream = linear_module(seed=1), np.random.default_rng(2)
    obs, actions, returns = stream.normal(size=(20, 2)), stream.integers(3, size=20), stream.normal(size=20)
    batch = {"obs": torch.from_numpy(obs), "actions": torch.from_numpy(actions), "returns": torch.from_numpy(returns)}
    loss = PGLoss(PGConfig(use_baseline=use_baseline, vf_loss_coeff=0.7, entropy_coeff=entropy_coeff))
    metrics = loss(module, batch)
    metrics.total_loss.backward()

    assert module.policy.grad is not None
    advantages = returns - values(module, obs) if use_baseline else returns
    expected = policy_gradient(module, obs, actions, advantages, entropy_coeff)
    np.testing.assert_allclose(module.policy.grad.numpy(), expected, atol=1e-12)
    if not use_baseline:
        assert module.value.grad is None
        assert metrics.vf_loss.item() == 0.0
        return
    assert module.value.grad is not None
    np.testing.assert_allclose(module.value.grad.numpy(), value_gradient(module, obs, returns, 0.7), atol=1e-12)
    assert metrics.vf_loss.item() == pytest.approx((advantages**2).mean())


def test_a_corridor_is_learned() -> None:
    settings = "algorithm.lr=1e-2", "algorithm.train_batch_size_per_learner=80"
    assert steps_to_the_end("algorithm=pg", *settings) < 7


def test_a_corridor_is_learned_with_a_baseline() -> None:
    settings = "algorithm.lr=1e-2", "algorithm.train_batch_size_per_learner=80"
    assert steps_to_the_end("algorithm=pg", "algorithm.use_baseline=true", *settings) < 7
