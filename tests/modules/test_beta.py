"""The beta distribution against torch's, its samples against its density, and a run with bounded actions."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import AffineTransform, Independent, TransformedDistribution, kl_divergence
from torch.distributions import Beta as TorchBeta

from runner import Trainer
from runner.config.algorithms import PPOConfig
from runner.config.errors import ConfigError
from runner.config.schemas import ModuleConfig
from runner.learners.ppo import PPOLoss
from runner.modules import ActorCriticModule, Beta, NestedDistribution, SACModule
from tests.conftest import QUICK
from tests.learners.loss_contract import LossContract
from tests.support.resuming import assert_resumes_exactly

UNEVEN = gym.spaces.Box(np.array([[-1.0, 0.0, -3.0]], np.float32), np.array([[1.0, 10.0, 5.0]], np.float32))
LOW, WIDTH = torch.tensor([-1.0, 0.0, -3.0]), torch.tensor([2.0, 10.0, 8.0])
VECTOR = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
CONFIG = ModuleConfig(fcnet_hiddens=[8], action_distribution="beta")


def _inputs(num_rows: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0.0, 2.0, (num_rows, 6)).astype(np.float32))


def _of_torch(dist_inputs: Tensor) -> Independent:
    alpha, beta = (1.0 + F.softplus(dist_inputs)).chunk(2, -1)
    return Independent(TorchBeta(alpha, beta), 1)


def test_log_prob_entropy_kl_and_mode() -> None:
    dist, dist_inputs, others = Beta(UNEVEN), _inputs(50), _inputs(50, seed=1)
    actions = dist.sample(dist_inputs, torch.from_numpy(dist.draw_noise(np.random.default_rng(0), (50,))))
    assert actions.shape == (50, 1, 3)
    flat = actions.reshape(50, 3)
    assert ((flat > LOW) & (flat < LOW + WIDTH)).all()
    expected = TransformedDistribution(_of_torch(dist_inputs), [AffineTransform(LOW, WIDTH, event_dim=1)])
    torch.testing.assert_close(dist.log_prob(dist_inputs, actions), expected.log_prob(flat), rtol=1e-3, atol=1e-3)
    entropy = _of_torch(dist_inputs).entropy() + WIDTH.log().sum()
    torch.testing.assert_close(dist.entropy(dist_inputs), entropy, rtol=1e-4, atol=1e-4)
    divergence = kl_divergence(_of_torch(dist_inputs), _of_torch(others))
    torch.testing.assert_close(dist.kl(dist_inputs, others), divergence, rtol=1e-4, atol=1e-4)
    mode, near = dist.mode(dist_inputs), 0.01 * torch.randn(20, 50, 1, 3)
    best = dist.log_prob(dist_inputs, mode)
    assert (dist.log_prob(dist_inputs.expand(20, -1, -1), mode + near) <= best + 1e-3).all()


@pytest.mark.parametrize("raw", [(-5.0, -5.0), (0.0, 1.0), (4.0, -1.0), (30.0, 50.0)])
def test_samples_follow_the_density(raw: tuple[float, float]) -> None:
    dist = Beta(gym.spaces.Box(0.0, 1.0, (1,), np.float32))
    dist_inputs = torch.tensor([raw]).expand(40_000, -1)
    noise = torch.from_numpy(dist.draw_noise(np.random.default_rng(3), (40_000,)))
    samples = dist.sample(dist_inputs, noise).squeeze(-1).sort().values.double()
    grid = torch.linspace(0.0, 1.0, 20_001, dtype=torch.float64)
    alpha, beta = (1.0 + F.softplus(torch.tensor(raw, dtype=torch.float64))).unbind()
    density = TorchBeta(alpha, beta).log_prob(grid.clamp(1e-9, 1 - 1e-9)).exp()
    cumulative = torch.cat((torch.zeros(1), torch.cumulative_trapezoid(density, grid)))
    at_samples = cumulative[(samples * 20_000).round().long()]
    distance = (at_samples - torch.arange(40_000) / 40_000).abs().max().item()
    assert distance < 1.63 / 40_000**0.5 + 2e-3  # 1 % level of Kolmogorov and Smirnov, and the spacing of the grid


def test_spaces() -> None:
    actions = gym.spaces.Dict({"move": VECTOR, "fire": gym.spaces.Discrete(2)})
    module = ActorCriticModule(VECTOR, actions, CONFIG)
    assert isinstance(module.action_dist, NestedDistribution)
    assert {type(part).__name__ for part in module.action_dist.parts} == {"Beta", "Categorical"}
    with pytest.raises(TypeError, match="action_distribution=beta needs bounded actions"):
        ActorCriticModule(VECTOR, gym.spaces.Box(-np.inf, np.inf, (2,), np.float32), CONFIG)
    with pytest.raises(ValueError, match="needs float actions"):
        ActorCriticModule(VECTOR, gym.spaces.Discrete(2), CONFIG)
    with pytest.raises(ValueError, match=r"SACModule: module\.action_distribution is set"):
        SACModule(VECTOR, VECTOR, CONFIG)


class TestPPOLossContract(LossContract):
    loss_class = PPOLoss
    config = PPOConfig(entropy_coeff=0.01)
    module_class = ActorCriticModule
    module_config = CONFIG
    action_spaces = ("continuous",)


def test_a_run_resumes_exactly(tmp_path: Path) -> None:
    overrides = [*QUICK, "module.action_distribution=beta", "algorithm.train_batch_size_per_learner=160"]
    assert_resumes_exactly(partial(Trainer.from_experiment, "ppo_pendulum", overrides), tmp_path, cuts=[1])


def test_a_free_log_std_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"free_log_std: module\.action_distribution=beta"):
        Trainer.from_experiment("ppo_pendulum", ["module.action_distribution=beta", "module.free_log_std=true"])
