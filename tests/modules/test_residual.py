"""Residual blocks of SimBa: equations, initialisation, a compiled loss, and a resumed run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from runner import Trainer
from runner.config.algorithms import SACConfig
from runner.config.errors import ConfigError
from runner.config.schemas import ModuleConfig
from runner.learners.sac import SACLoss
from runner.modules import ActorCriticModule, DoubleQModule, RLModule, SACModule
from runner.modules.layers import LayerOptions
from runner.modules.residual import ResidualEnsemble
from tests.learners.loss_contract import LossContract
from tests.learners.offline_modules import make
from tests.modules.spaces import items_of
from tests.support.resuming import assert_resumes_exactly

VECTOR = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
CONFIG = ModuleConfig(architecture="simba", fcnet_hiddens=[8, 8], fcnet_activation="relu")


def _through(network: ResidualEnsemble, member: int, inputs: Tensor) -> Tensor:
    """Compute the equations of the docstring for one member."""

    def norm(number: int, hidden: Tensor) -> Tensor:
        scale, shift = network.norms[2 * number][member, 0], network.norms[2 * number + 1][member, 0]
        return F.layer_norm(hidden, hidden.shape[-1:], scale, shift)

    hidden = inputs @ network.embedding.weights[0][member] + network.embedding.biases[0][member]
    for number, block in enumerate(network.blocks):
        inner = norm(number, hidden) @ block.weights[0][member] + block.biases[0][member]
        hidden = hidden + F.relu(inner) @ block.weights[1][member] + block.biases[1][member]
    return norm(len(network.blocks), hidden)


def test_members_compute_the_equations() -> None:
    network = ResidualEnsemble(3, 5, [8, 8], LayerOptions("relu"))
    assert [tuple(block.weights[0].shape) for block in network.blocks] == [(3, 8, 32)] * 2
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    inputs = torch.randn(4, 5)
    outputs = network.forward(inputs)
    for member in range(3):
        torch.testing.assert_close(outputs[member], _through(network, member, inputs))
    members = torch.tensor([2, 0])
    torch.testing.assert_close(network.forward(inputs, members), outputs[members])


def test_the_embedding_is_orthogonal_and_members_differ() -> None:
    network = ResidualEnsemble(2, 8, [8], LayerOptions("relu"))
    weight = network.embedding.weights[0][0]
    torch.testing.assert_close(weight @ weight.T, torch.eye(8), atol=1e-5, rtol=0)
    assert not torch.equal(weight, network.embedding.weights[0][1])
    assert not network.embedding.biases[0].any()


def test_given_initialisers_are_used() -> None:
    config = replace(CONFIG, fcnet_kernel_initializer="constant_", fcnet_kernel_initializer_kwargs={"val": 0.5})
    module = ActorCriticModule(VECTOR, gym.spaces.Discrete(2), config)
    assert module.encoder.blocks is not None
    assert (module.encoder.blocks.embedding.weights[0] == 0.5).all()


def test_policy_and_q_functions_have_blocks() -> None:
    module = SACModule(VECTOR, gym.spaces.Box(-1.0, 1.0, (2,), np.float32), CONFIG)
    assert isinstance(module.critic.encoder, ResidualEnsemble)
    assert module.encoder.blocks is not None
    obs, actions = items_of(VECTOR, 5), torch.zeros(5, 2)
    assert module.compute_q_values(obs, actions).shape == (2, 5)
    assert module.dist_inputs(obs).shape == (5, 4)


def test_blocks_follow_the_convolutions_of_images() -> None:
    image = gym.spaces.Box(0, 255, (16, 16, 1), np.uint8)
    module = DoubleQModule(image, gym.spaces.Discrete(3), CONFIG)
    assert module.forward_train({"obs": items_of(image, 5)})["qf_preds"].shape == (5, 3)


class TestSACLossContract(LossContract):
    config = SACConfig()
    action_spaces = ("continuous",)
    untouched = ("log_alpha_prime",)

    def make_loss(self) -> SACLoss:
        return SACLoss(self.config)

    def make_module(self, action_space: gym.Space[Any]) -> RLModule:
        module: RLModule = make(SACModule, action_space, config=replace(CONFIG, num_critics=3))
        return module


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("module.fcnet_hiddens=[8,4]", "fcnet_hiddens: module.architecture=simba needs one width"),
        ("module.critic_dropout=0.1", "critic_dropout: residual blocks"),
        ("module.critic_use_layernorm=true", "critic_use_layernorm: residual blocks"),
    ],
)
def test_options_that_do_not_fit(overrides: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Trainer.from_experiment("sac_pendulum", ["module.architecture=simba", overrides])


def test_a_run_with_normalised_observations_resumes_exactly(tmp_path: Path) -> None:
    overrides = [
        *("module.architecture=simba", "module.fcnet_hiddens=[8,8]", "connectors=mean_std_filter", "tracking=none"),
        *("evaluation=none", "algorithm.train_batch_size_per_learner=16", "algorithm.training_intensity=16"),
        *("algorithm.num_steps_sampled_before_learning_starts=64", "algorithm.min_sample_timesteps_per_iteration=100"),
    ]
    make_trainer = partial(Trainer.from_experiment, "sac_pendulum", overrides)
    assert_resumes_exactly(make_trainer, tmp_path, cuts=[1])
