"""Distributions of returns against naive loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.config.schemas import ModuleConfig
from runner.modules.value_distributions import (
    CategoricalReturns,
    QuantileReturns,
    of_actions,
    quantile_huber_loss,
    value_distribution_for,
)

Row = tuple[list[float], float, float]
NUMBERS = st.floats(-20, 20, width=32)


@st.composite
def rows_of(draw: Any, num_atoms: int) -> list[Row]:
    """Distribution inputs of s', reward and discount; some rows are terminal, some returns beyond any bound."""
    inputs = st.lists(st.floats(-5, 5, width=32), min_size=num_atoms, max_size=num_atoms)
    rewards = st.one_of(NUMBERS, st.sampled_from([-1e6, 1e6]))
    discounts = st.one_of(st.just(0.0), st.floats(0, 1, width=32))
    rows: list[Row] = draw(st.lists(st.tuples(inputs, rewards, discounts), min_size=1, max_size=4))
    return rows


def tensors(rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    inputs, rewards, discounts = zip(*rows, strict=True)
    return tuple(torch.tensor(column, dtype=torch.float64) for column in (inputs, rewards, discounts))  # type: ignore[return-value]


def naive_projection(probabilities: Any, reward: float, discount: float, atoms: Any) -> Any:
    """Algorithm 1 of Bellemare et al., atom by atom, with its lower and upper neighbour."""
    spacing, out = atoms[1] - atoms[0], np.zeros(len(atoms))
    for probability, atom in zip(probabilities, atoms, strict=True):
        place = (min(max(reward + discount * atom, atoms[0]), atoms[-1]) - atoms[0]) / spacing
        place = min(max(place, 0.0), len(atoms) - 1.0)
        lower, upper = math.floor(place), math.ceil(place)
        if lower == upper:
            out[lower] += probability
        else:
            out[lower] += probability * (upper - place)
            out[upper] += probability * (place - lower)
    return out


@settings(deadline=None, max_examples=150)
@given(st.data(), st.integers(2, 9), NUMBERS, st.floats(0.5, 50, width=32))
def test_projection_is_that_of_a_loop(data: Any, num_atoms: int, v_min: float, width: float) -> None:
    rows = data.draw(rows_of(num_atoms))
    inputs, rewards, discounts = tensors(rows)
    atoms = np.linspace(v_min, v_min + width, num_atoms)
    probabilities = inputs.softmax(-1)
    distribution = CategoricalReturns(num_atoms, v_min, v_min + width)
    projected = distribution.projected(probabilities, rewards, discounts).numpy()
    for row, got in enumerate(projected):
        expected = naive_projection(probabilities[row].tolist(), float(rewards[row]), float(discounts[row]), atoms)
        np.testing.assert_allclose(got, expected, atol=1e-7)
    np.testing.assert_allclose(projected.sum(-1), 1, atol=1e-9)
    inside = ((rewards >= v_min) & (rewards <= v_min + width) & (discounts == 0)).numpy()  # such means are kept
    np.testing.assert_allclose(projected[inside] @ atoms, rewards.numpy()[inside], atol=1e-6)


def test_projection_at_the_bounds_and_after_the_end() -> None:
    distribution = CategoricalReturns(3, 0.0, 2.0)
    evenly = torch.full((4, 3), 1 / 3)
    rewards, discounts = torch.tensor([5.0, -5.0, 0.75, 2.0]), torch.tensor([1.0, 1.0, 0.0, 0.0])
    expected = [[0, 0, 1], [1, 0, 0], [0.25, 0.75, 0], [0, 0, 1]]
    torch.testing.assert_close(distribution.projected(evenly, rewards, discounts), torch.tensor(expected))


def test_categorical_loss_is_the_divergence_with_the_gradient_of_the_cross_entropy() -> None:
    stream = np.random.default_rng(0)
    distribution = CategoricalReturns(5, -1.0, 3.0)
    logits, next_logits = (torch.from_numpy(stream.normal(size=(6, 5))) for _ in range(2))
    rewards, discounts = torch.from_numpy(stream.normal(size=6)), torch.tensor([0.9, 0, 0.9, 0.8, 0, 0.5]).double()
    logits.requires_grad_()
    losses = distribution.td_loss(logits, next_logits, rewards, discounts)
    target = distribution.projected(next_logits.softmax(-1), rewards, discounts)
    for row in range(6):
        log_p = logits[row].detach().log_softmax(-1)
        expected = sum(float(m * (m.log() - log_p[i])) for i, m in enumerate(target[row]) if m > 0)
        assert losses[row].item() == pytest.approx(expected, abs=1e-9)
    assert bool((losses >= 0).all())
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    torch.testing.assert_close(gradient, logits.detach().softmax(-1) - target)


@settings(deadline=None, max_examples=100)
@given(st.data(), st.integers(2, 6))
def test_quantile_loss_is_that_of_a_double_loop(data: Any, num_atoms: int) -> None:
    rows = data.draw(rows_of(num_atoms))
    next_inputs, rewards, discounts = tensors(rows)
    lists = st.lists(NUMBERS, min_size=num_atoms, max_size=num_atoms)
    quantiles = torch.tensor([data.draw(lists) for _ in rows], dtype=torch.float64, requires_grad=True)
    losses = QuantileReturns().td_loss(quantiles, next_inputs, rewards, discounts)
    (gradient,) = torch.autograd.grad(losses.sum(), quantiles)
    for row in range(len(rows)):
        expected = 0.0
        for i in range(num_atoms):
            tau, theta = (i + 0.5) / num_atoms, quantiles[row, i].item()
            slope = 0.0
            for j in range(num_atoms):
                u = float(rewards[row] + discounts[row] * next_inputs[row, j]) - theta
                huber = 0.5 * u**2 if abs(u) <= 1 else abs(u) - 0.5
                expected += abs(tau - (u < 0)) * huber / num_atoms
                slope += abs(tau - (u < 0)) * min(max(u, -1.0), 1.0) / num_atoms
            assert gradient[row, i].item() == pytest.approx(-slope, rel=1e-9, abs=1e-9)
        assert losses[row].item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_quantile_loss_of_large_returns_in_float32() -> None:
    """Sums of squares of returns in the thousands do not drown the losses of quantiles close to them."""
    stream = np.random.default_rng(0)
    returns = torch.from_numpy(stream.normal(-1500.0, 300.0, (20, 115)))
    quantiles = torch.from_numpy(stream.normal(-1500.0, 300.0, (20, 50)))
    taus = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    exact = quantile_huber_loss(quantiles, taus, returns)
    rounded = quantile_huber_loss(quantiles.float(), taus.float(), returns.float())
    torch.testing.assert_close(rounded.double(), exact, rtol=1e-4, atol=1e-2)


def test_means() -> None:
    categorical = CategoricalReturns(3, -1.0, 3.0)
    logits = torch.tensor([[[0.2, 0.5, 0.3], [1.0, 1.0, 2.0]]]).log()
    torch.testing.assert_close(categorical.mean(logits), torch.tensor([[-0.2 + 0.5 + 0.9, (-1 + 1 + 6) / 4]]))
    torch.testing.assert_close(QuantileReturns().mean(torch.tensor([[1.0, 2.0, 6.0]])), torch.tensor([3.0]))


def test_values_of_actions() -> None:
    values, actions = torch.randn(5, 3, 4), torch.tensor([0, 2, 1, 1, 0])
    expected = torch.stack([values[row, action] for row, action in enumerate(actions)])
    assert torch.equal(of_actions(values, actions), expected)
    assert torch.equal(of_actions(values[..., 0], actions), expected[:, 0])


def test_options() -> None:
    assert value_distribution_for(ModuleConfig()) is None
    assert isinstance(value_distribution_for(ModuleConfig(q_distribution="quantile", num_atoms=7)), QuantileReturns)
    for v_min, v_max in ((1.0, 1.0), (None, 1.0), (0.0, None)):
        with pytest.raises(ValueError, match="v_min < v_max"):
            value_distribution_for(ModuleConfig(q_distribution="categorical", num_atoms=7, v_min=v_min, v_max=v_max))
