"""A2C's gradient in closed form, what it reports, and a small environment learned in seconds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from runner.config.algorithms import A2CConfig
from runner.learners.a2c import A2CLoss
from tests.learners.linear_module import linear_module, policy_gradient, probabilities, value_gradient, values
from tests.learners.loss_contract import LossContract
from tests.learners.toy_mdps import steps_to_the_end


class TestA2CLossContract(LossContract):
    loss_class = A2CLoss
    config = A2CConfig()


class TestA2CLossContractWithoutEntropy(LossContract):
    loss_class = A2CLoss
    config = A2CConfig(entropy_coeff=0.0)


@pytest.mark.parametrize("entropy_coeff", [0.0, 0.3])
@pytest.mark.parametrize("vf_loss_coeff", [0.0, 0.7])
def test_gradient_in_closed_form(entropy_coeff: float, vf_loss_coeff: float) -> None:
    module, stream = linear_module(seed=1), np.random.default_rng(2)
    obs, actions = stream.normal(size=(20, 2)), stream.integers(3, size=20)
    advantages, targets = stream.normal(size=20), stream.normal(size=20)
    columns = {"obs": obs, "actions": actions, "advantages": advantages, "value_targets": targets}
    batch = {name: torch.from_numpy(column) for name, column in columns.items()}
    loss = A2CLoss(A2CConfig(vf_loss_coeff=vf_loss_coeff, entropy_coeff=entropy_coeff))
    metrics = loss(module, batch)
    metrics.total_loss.backward()

    assert module.policy.grad is not None
    assert module.value.grad is not None
    expected = policy_gradient(module, obs, actions, advantages, entropy_coeff)
    np.testing.assert_allclose(module.policy.grad.numpy(), expected, atol=1e-12)
    expected = value_gradient(module, obs, targets, vf_loss_coeff)
    np.testing.assert_allclose(module.value.grad.numpy(), expected, atol=1e-12)
    probs = probabilities(module, obs)
    assert metrics.entropy.item() == pytest.approx(-(probs * np.log(probs)).sum(1).mean())
    assert metrics.vf_loss.item() == pytest.approx(((values(module, obs) - targets) ** 2).mean())
    log_probs = np.log(probs[np.arange(20), actions])
    assert metrics.policy_loss.item() == pytest.approx(-(log_probs * advantages).mean())


def test_entropy_coefficient_follows_its_schedule() -> None:
    loss = A2CLoss(A2CConfig(entropy_coeff=[[0, 0.1], [1000, 0.0]]))
    coefficients = []
    for num_env_steps in (0, 250, 1000):
        loss.before_update(num_env_steps)
        coefficients.append(loss.coefficients()["curr_entropy_coeff"])
    assert coefficients == pytest.approx([0.1, 0.075, 0.0])


def test_a_corridor_is_learned() -> None:
    settings = "algorithm.lr=3e-3", "algorithm.entropy_coeff=0", "algorithm.train_batch_size_per_learner=40"
    assert steps_to_the_end("algorithm=a2c", *settings) < 7
