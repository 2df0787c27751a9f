"""Implicit quantiles: the head against its equation, and greedy actions without random fractions."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import torch

from runner.config.schemas import ModuleConfig
from runner.modules import DoubleQModule
from runner.modules.implicit_quantiles import ImplicitQuantileHead
from runner.modules.layers import MLP, LayerOptions


def test_the_head_computes_equation_4() -> None:
    layer = MLP(6, [], LayerOptions("relu"), 3)
    head = ImplicitQuantileHead(6, lambda: layer, 4)
    features, taus = torch.randn(2, 6), torch.rand(2, 4)
    quantiles = head.forward_with_noise(features, taus).reshape(2, 3, 4)
    for row in range(2):
        for number, tau in enumerate(taus[row].tolist()):
            cosines = torch.tensor([math.cos(math.pi * i * tau) for i in range(64)])
            embedded = torch.relu(head.embedding(cosines))
            torch.testing.assert_close(quantiles[row, :, number], layer.forward(features[row] * embedded))
    midpoints = torch.tensor([0.125, 0.375, 0.625, 0.875])
    torch.testing.assert_close(head.forward(features), head.forward_with_noise(features, midpoints))


def test_exploration_draws_fractions_and_greedy_actions_do_not() -> None:
    config = ModuleConfig(fcnet_hiddens=[8], q_distribution="implicit_quantile", num_atoms=5)
    module = DoubleQModule(gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2), config)
    noise = module.draw_noise(np.random.default_rng(0), (1000,))
    assert noise.shape == (1000, 5)
    assert 0.0 <= noise.min() < 0.01
    assert 0.99 < noise.max() < 1.0
    obs = torch.zeros(2, 3)
    greedy = module.forward_exploration({"obs": obs})["action_dist_inputs"]
    torch.testing.assert_close(greedy[0], greedy[1])
    drawn = module.forward_exploration({"obs": obs, "noise": torch.from_numpy(noise[:2])})["action_dist_inputs"]
    assert not torch.equal(drawn[0], drawn[1])
