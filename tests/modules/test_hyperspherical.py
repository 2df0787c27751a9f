"""Hyperspherical blocks of SimbaV2: equations, initial values, and lengths of 1."""

from __future__ import annotations

import math
from dataclasses import replace

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from runner.config.schemas import ModuleConfig
from runner.modules import ActorCriticModule
from runner.modules.hyperspherical import HypersphericalEnsemble
from runner.modules.layers import LayerOptions

VECTOR = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
CONFIG = ModuleConfig(architecture="simba_v2", fcnet_hiddens=[8, 8], fcnet_activation="relu")


def _unit(x: Tensor, axis: int = -1) -> Tensor:
    return x / x.square().sum(axis, keepdim=True).sqrt()


def _through(network: HypersphericalEnsemble, member: int, inputs: Tensor) -> Tensor:
    """Compute the equations of the docstring for one member."""
    weights = [_unit(weight[member], 0) for weight in network.weights]
    scales = [scale[member] for scale in network.gains]
    num_blocks, width = len(network.steps), network.num_outputs
    hidden = _unit(scales[0] * (_unit(torch.cat((inputs, torch.full((len(inputs), 1), 3.0)), -1)) @ weights[0]))
    for number, rate in enumerate(network.steps):
        a = rate[member] * math.sqrt(width) / (num_blocks + 1)
        inner = torch.relu(scales[number + 1] * (hidden @ weights[2 * number + 1]))
        hidden = _unit(hidden + a * (_unit(inner @ weights[2 * number + 2]) - hidden))
    return hidden


def test_members_compute_the_equations() -> None:
    torch.manual_seed(0)
    network = HypersphericalEnsemble(3, 5, [8, 8], LayerOptions("relu"))
    assert [tuple(weight.shape[1:]) for weight in network.weights] == [(6, 8), (8, 32), (32, 8), (8, 32), (32, 8)]
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    inputs = torch.randn(4, 5)
    outputs = network.forward(inputs)
    for member in range(3):
        torch.testing.assert_close(outputs[member], _through(network, member, inputs))
    members = torch.tensor([2, 0])
    torch.testing.assert_close(network.forward(inputs, members), outputs[members])
    torch.testing.assert_close(network.forward(inputs.expand(3, -1, -1)), outputs)


def test_features_have_length_one_however_large_the_weights() -> None:
    network = HypersphericalEnsemble(2, 5, [8], LayerOptions("relu"))
    inputs = 100.0 * torch.randn(4, 5)
    before = network.forward(inputs)
    torch.testing.assert_close(before.square().sum(-1), torch.ones(2, 4))
    with torch.no_grad():
        for weight in network.weights:
            weight.mul_(50.0)
    torch.testing.assert_close(network.forward(inputs), before)


def test_the_length_of_the_input_counts() -> None:
    network = HypersphericalEnsemble(1, 2, [8], LayerOptions("relu"))
    short, long = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 4.0]])
    assert not torch.allclose(network.forward(short), network.forward(long))


def test_initial_values_are_those_of_the_paper() -> None:
    network = HypersphericalEnsemble(2, 7, [8, 8, 8], LayerOptions("relu"))
    weight = network.weights[0][0]  # 8 inputs, 8 outputs
    torch.testing.assert_close(weight.T @ weight, torch.eye(8), atol=1e-5, rtol=0)
    assert not torch.equal(weight, network.weights[0][1])
    torch.testing.assert_close(network.gains[0], torch.full((2, 1, 8), math.sqrt(2 / 8)))
    torch.testing.assert_close(network.gains[1], torch.full((2, 1, 32), math.sqrt(2 / 32)))
    torch.testing.assert_close(network.steps[0] * math.sqrt(8) / 4, torch.full((2, 1, 8), 1 / 4))


def test_given_initialisers_are_used() -> None:
    config = replace(CONFIG, fcnet_kernel_initializer="constant_", fcnet_kernel_initializer_kwargs={"val": 0.5})
    module = ActorCriticModule(VECTOR, gym.spaces.Discrete(2), config)
    assert isinstance(module.encoder.blocks, HypersphericalEnsemble)
    torch.testing.assert_close(module.encoder.blocks.weights[0], torch.full((1, 4, 8), 0.5))  # four inputs: length 1
