"""Residual blocks of SimBa: equations and initialisation."""

from __future__ import annotations

from dataclasses import replace

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from runner.config.schemas import ModuleConfig
from runner.modules import ActorCriticModule
from runner.modules.layers import LayerOptions
from runner.modules.residual import ResidualEnsemble

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
