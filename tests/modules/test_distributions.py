"""Our distributions against torch's, which are slower and used in tests only."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal, kl_divergence

from runner.modules import Categorical, DiagGaussian
from runner.modules.distributions import distribution_for


def normal(dist_inputs: torch.Tensor, shape: tuple[int, ...]) -> Independent:
    mean, log_std = (part.reshape(-1, *shape) for part in dist_inputs.chunk(2, -1))
    return Independent(Normal(mean, log_std.exp()), len(shape))


def inputs(seed: int, width: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0.0, 1.5, (40, width)).astype(np.float32))


def test_categorical() -> None:
    dist, logits, others = Categorical(5), inputs(0, 5), inputs(1, 5)
    ours, theirs = TorchCategorical(logits=logits), TorchCategorical(logits=others)
    actions = torch.arange(40) % 5
    torch.testing.assert_close(dist.log_prob(logits, actions), ours.log_prob(actions))
    torch.testing.assert_close(dist.entropy(logits), ours.entropy())
    torch.testing.assert_close(dist.kl(logits, others), kl_divergence(ours, theirs))
    assert dist.mode(logits).tolist() == logits.argmax(-1).tolist()
    assert dist.num_inputs == 5


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 2), ()])
def test_diag_gaussian(shape: tuple[int, ...]) -> None:
    dist = DiagGaussian(shape)
    dist_inputs, others = inputs(0, dist.num_inputs), inputs(1, dist.num_inputs)
    ours, theirs = normal(dist_inputs, shape), normal(others, shape)
    noise = torch.from_numpy(dist.draw_noise(np.random.default_rng(2), (40,)))
    actions = dist.sample(dist_inputs, noise)
    assert actions.shape == (40, *shape)
    torch.testing.assert_close(actions, ours.mean + ours.stddev * noise.reshape(40, *shape))
    torch.testing.assert_close(dist.log_prob(dist_inputs, actions), ours.log_prob(actions), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dist.log_prob(others, actions), theirs.log_prob(actions), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(dist.entropy(dist_inputs), ours.entropy())
    torch.testing.assert_close(dist.kl(dist_inputs, others), kl_divergence(ours, theirs), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(dist.mode(dist_inputs), ours.mean)


@pytest.mark.parametrize("dist", [Categorical(4), DiagGaussian((3,))])
def test_kl_to_itself_is_zero(dist: Categorical | DiagGaussian) -> None:
    dist_inputs = inputs(0, dist.num_inputs)
    torch.testing.assert_close(dist.kl(dist_inputs, dist_inputs), torch.zeros(40), atol=1e-6, rtol=0)


def test_categorical_with_a_ruled_out_action_stays_finite() -> None:
    logits = torch.tensor([[0.0, -1e9, 0.0]])
    assert Categorical(3).entropy(logits).item() == pytest.approx(np.log(2))
    assert torch.isfinite(Categorical(3).kl(logits, torch.zeros(1, 3))).all()


def test_noise_is_finite() -> None:
    noise = Categorical(4).draw_noise(np.random.default_rng(0), (10000,))
    assert noise.shape == (10000, 4)
    assert noise.dtype == np.float32
    assert np.isfinite(noise).all()


def test_distribution_for_a_space() -> None:
    discrete = distribution_for(gym.spaces.Discrete(7))
    assert isinstance(discrete, Categorical)
    assert discrete.num_inputs == 7
    box = distribution_for(gym.spaces.Box(-1, 1, (2, 3), np.float64))
    assert isinstance(box, DiagGaussian)
    assert box.num_inputs == 12


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Discrete(3, start=1),
        gym.spaces.MultiDiscrete([2, 3]),
        gym.spaces.MultiBinary(2),
        gym.spaces.Box(0, 255, (2,), np.uint8),
        gym.spaces.Dict({"a": gym.spaces.Discrete(2)}),
    ],
    ids=lambda space: type(space).__name__,
)
def test_spaces_without_a_distribution(space: gym.Space) -> None:  # type: ignore[type-arg]
    with pytest.raises(TypeError, match="no action distribution for") as caught:
        distribution_for(space)
    assert str(space) in str(caught.value)
