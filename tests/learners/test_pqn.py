"""PQN's loss in closed form, its returns, and a small environment learned in seconds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from runner.config.algorithms import PQNConfig
from runner.config.schemas import ModuleConfig
from runner.learners.pqn import PQNLoss
from runner.modules import QModule
from runner.pipelines.advantages import compute_gae
from tests.learners.loss_contract import LossContract
from tests.learners.toy_mdps import steps_to_the_end

GAMMA, LAMBDA = 0.9, 0.7


def q_module() -> QModule:
    torch.manual_seed(0)
    config = ModuleConfig(fcnet_hiddens=[5], fcnet_use_layernorm=True)
    return QModule(Box(-1, 1, (2,), np.float32), Discrete(3), config)


class TestPQNLossContract(LossContract):
    loss_class = PQNLoss
    config = PQNConfig()
    module_class = QModule
    action_spaces = ("discrete",)


def test_loss_and_gradient_in_closed_form() -> None:
    module, stream = q_module(), np.random.default_rng(1)
    obs = torch.from_numpy(stream.normal(size=(20, 2)).astype(np.float32))
    actions, targets = torch.from_numpy(stream.integers(3, size=20)), torch.from_numpy(stream.normal(size=20))
    batch = {"obs": obs, "actions": actions, "value_targets": targets.float()}
    metrics = PQNLoss(PQNConfig())(module, batch)
    metrics.total_loss.backward()

    q = module.forward_train({"obs": obs})["qf_preds"].detach()[torch.arange(20), actions]
    errors = q - targets.float()
    assert metrics.qf_loss.item() == pytest.approx(0.5 * errors.square().mean().item(), rel=1e-5)
    assert metrics.qf_mean.item() == pytest.approx(q.mean().item(), rel=1e-5)
    bias = dict(module.named_parameters())["qf.1.layers.0.bias"]
    assert bias.grad is not None
    expected = [errors[actions == action].sum().item() / 20 for action in range(3)]
    np.testing.assert_allclose(bias.grad.numpy(), expected, atol=1e-5)


def test_value_targets_are_lambda_returns() -> None:
    """Two chunks, a terminated one and one that continues, against the recursion of the paper."""
    module, stream = q_module(), np.random.default_rng(2)
    obs = torch.from_numpy(stream.normal(size=(7, 2)).astype(np.float32))
    rewards = torch.from_numpy(stream.normal(size=7).astype(np.float32))
    is_step = torch.tensor([True, True, False, True, True, True, False])
    terminateds = torch.tensor([False, True, False, False, False, False, False])
    values = module.compute_values({"obs": obs}).detach()
    torch.testing.assert_close(values, module.forward_train({"obs": obs})["qf_preds"].detach().max(-1).values)
    targets = values + compute_gae(rewards, values, terminateds, is_step, GAMMA, LAMBDA, longest=3)

    expected = [0.0] * 7
    for t in (1, 0, 5, 4, 3):
        is_last = not is_step[t + 1]
        if terminateds[t]:
            following = 0.0
        elif is_last:
            following = values[t + 1].item()
        else:
            following = (1 - LAMBDA) * values[t + 1].item() + LAMBDA * expected[t + 1]
        expected[t] = rewards[t].item() + GAMMA * following
    np.testing.assert_allclose(targets[is_step].numpy(), np.array(expected)[is_step.numpy()], rtol=1e-5, atol=1e-6)


def test_a_corridor_is_learned() -> None:
    settings = "algorithm.lr=3e-3", "algorithm.train_batch_size_per_learner=40", "algorithm.minibatch_size=20"
    assert steps_to_the_end("algorithm=pqn", *settings, "algorithm.epsilon=[[0,1],[1000,0.1]]") < 7
