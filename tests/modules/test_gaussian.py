"""The squashed Gaussian against torch's transformed distribution, and against its own density."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal, TransformedDistribution, kl_divergence
from torch.distributions.transforms import AffineTransform, TanhTransform

from runner.modules import SquashedGaussian

UNEVEN = gym.spaces.Box(np.array([-1.0, 0.0, -3.0], np.float32), np.array([1.0, 10.0, 5.0], np.float32))
CENTER, SCALE = torch.tensor([0.0, 5.0, 1.0]), torch.tensor([1.0, 5.0, 4.0])


def inputs(*leading: int, seed: int = 0, scale: float = 0.5) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0.0, scale, (*leading, 6)).astype(np.float32))


def theirs(dist_inputs: Tensor) -> TransformedDistribution:
    mean, log_std = dist_inputs.chunk(2, -1)
    return TransformedDistribution(
        Independent(Normal(mean, log_std.exp()), 1), [TanhTransform(), AffineTransform(CENTER, SCALE, event_dim=1)]
    )


@pytest.mark.parametrize("leading", [(40,), (5, 4)])
def test_against_torch(leading: tuple[int, ...]) -> None:
    dist, dist_inputs = SquashedGaussian(UNEVEN), inputs(*leading)
    noise = torch.from_numpy(dist.draw_noise(np.random.default_rng(1), leading))
    actions, log_prob = dist.sample_with_log_prob(dist_inputs, noise)
    mean, log_std = dist_inputs.chunk(2, -1)
    torch.testing.assert_close(actions, CENTER + SCALE * (mean + log_std.exp() * noise).tanh())
    torch.testing.assert_close(dist.sample(dist_inputs, noise), actions)
    torch.testing.assert_close(dist.mode(dist_inputs), CENTER + SCALE * mean.tanh())
    expected = theirs(dist_inputs).log_prob(actions)
    torch.testing.assert_close(log_prob, expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(dist.log_prob(dist_inputs, actions), expected, rtol=1e-3, atol=1e-3)
    others = inputs(*leading, seed=2)
    expected_kl = kl_divergence(theirs(dist_inputs).base_dist, theirs(others).base_dist)
    torch.testing.assert_close(dist.kl(dist_inputs, others), expected_kl, rtol=1e-4, atol=1e-5)
    assert dist.log_volume == pytest.approx(math.log(2 * 10 * 8), rel=1e-6)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.1), (0.3, 1.0), (-2.0, 1.0), (0.0, 2.5), (4.0, 0.5)])
def test_density_and_entropy_by_integration(mean: float, std: float) -> None:
    space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)
    dist, dist_inputs = SquashedGaussian(space), torch.tensor([[mean, math.log(std)]])
    x = torch.linspace(mean - 8 * std, mean + 8 * std, 20_001, dtype=torch.float64)
    log_slope = math.log(2) + 2 * (math.log(2) - x - torch.nn.functional.softplus(-2 * x))
    log_density = Normal(mean, std).log_prob(x) - log_slope
    entropy = -torch.trapezoid(Normal(mean, std).log_prob(x).exp() * log_density, x)
    assert dist.entropy(dist_inputs).item() == pytest.approx(entropy.item(), abs=2e-3)
    actions = torch.linspace(-1.9999, 1.9999, 200_001)
    mass = torch.trapezoid(dist.log_prob(dist_inputs.expand(len(actions), -1), actions[:, None]).exp(), actions)
    ends = (torch.tensor([-1.9999, 1.9999], dtype=torch.float64) / 2).atanh()
    expected = Normal(mean, std).cdf(ends).diff()
    assert mass.item() == pytest.approx(expected.item(), abs=2e-3)


def test_bounds() -> None:
    dist = SquashedGaussian(UNEVEN)
    dist_inputs = torch.tensor([[50.0, -50.0, 0.0, 2.0, 2.0, 2.0]]).requires_grad_()
    actions, log_prob = dist.sample_with_log_prob(dist_inputs, torch.zeros(1, 3))
    assert actions.tolist() == [[1.0, 0.0, 1.0]]
    at_bounds = dist.log_prob(dist_inputs, torch.tensor([[1.0, 10.0, -3.0]]))
    (log_prob + at_bounds).sum().backward()
    assert bool(log_prob.isfinite().all() and at_bounds.isfinite().all())
    assert bool(dist_inputs.grad.isfinite().all())  # type: ignore[union-attr]


def test_gradients_of_samples() -> None:
    """d action / d mean and d log pi / d mean by finite differences."""
    dist, noise = SquashedGaussian(UNEVEN), torch.tensor([[0.3, -1.0, 0.5]])
    dist_inputs = inputs(1).requires_grad_()
    actions, log_prob = dist.sample_with_log_prob(dist_inputs, noise)
    (actions.sum() + log_prob.sum()).backward()  # type: ignore[no-untyped-call]
    for column in range(6):
        step = torch.zeros(1, 6)
        step[0, column] = 1e-2
        ends = [dist.sample_with_log_prob(dist_inputs.detach() + sign * step, noise) for sign in (1, -1)]
        (up_a, up_p), (down_a, down_p) = ends
        slope = (up_a.sum() + up_p.sum() - down_a.sum() - down_p.sum()).item() / 2e-2
        assert dist_inputs.grad[0, column].item() == pytest.approx(slope, rel=1e-2, abs=1e-2)  # type: ignore[index]


def uniform_actions(dist: SquashedGaussian, leading: tuple[int, ...]) -> torch.Tensor:
    return dist.at_shares(torch.from_numpy(dist.draw_shares(np.random.default_rng(0), leading)))


def test_uniform_actions_fill_the_space() -> None:
    dist = SquashedGaussian(UNEVEN)
    actions = uniform_actions(dist, (2000, 5)).reshape(-1, 3)
    torch.testing.assert_close(actions.mean(0), CENTER, rtol=0, atol=0.1)
    torch.testing.assert_close(actions.std(0), 2 * SCALE / math.sqrt(12), rtol=0.02, atol=0)
    assert all(UNEVEN.contains(action) for action in actions[:50].numpy())


def test_shapes_and_dtypes_are_those_of_the_space() -> None:
    dist = SquashedGaussian(gym.spaces.Box(-1.0, 1.0, (), np.float32))
    assert dist.log_prob(torch.zeros(4, 2), dist.mode(torch.zeros(4, 2))).shape == (4,)
    dist = SquashedGaussian(gym.spaces.Box(-1.0, 1.0, (2, 3), np.float64))
    dist_inputs = torch.zeros(4, 12)
    for actions in (dist.mode(dist_inputs), uniform_actions(dist, (4,))):
        assert actions.shape == (4, 2, 3)
        assert actions.dtype == torch.float64
        assert dist.log_prob(dist_inputs, actions).shape == (4,)


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Discrete(2),
        gym.spaces.Box(-np.inf, np.inf, (2,), np.float32),
        gym.spaces.Box(0, 5, (2,), np.int64),
        gym.spaces.Box(-1.0, 1.0, (0,), np.float32),
    ],
    ids=["discrete", "unbounded", "integers", "empty"],
)
def test_other_spaces_are_refused(space: gym.Space[Any]) -> None:
    with pytest.raises(TypeError, match="a squashed Gaussian cannot give actions of"):
        SquashedGaussian(space)
