"""Vectorised estimates of ragged episodes equal the papers' formulas, written as loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.offline.evaluation import estimators
from runner.offline.evaluation.estimators import ModelValues, RecordedSteps, point_estimate


def _weights(log_ratios: list[Any]) -> list[list[float]]:
    return [[float(np.exp(sum(episode[: t + 1]))) for t in range(len(episode))] for episode in log_ratios]


def _naive_is(rewards: list[Any], log_ratios: list[Any], gamma: float, is_weighted: bool) -> float:
    weights = [float(np.exp(sum(episode))) for episode in log_ratios]
    returns = [sum(gamma**t * reward for t, reward in enumerate(episode)) for episode in rewards]
    total = sum(weight * value for weight, value in zip(weights, returns, strict=True))
    return total / (sum(weights) if is_weighted else len(rewards))


def _naive_per_decision(terms: list[Any], log_ratios: list[Any], gamma: float, is_weighted: bool) -> float:
    weights, total = _weights(log_ratios), 0.0
    for t in range(max(len(episode) for episode in terms)):
        at_t = [episode[min(t, len(episode) - 1)] for episode in weights]
        norm = sum(at_t) if is_weighted else len(terms)
        for episode, weight in zip(terms, at_t, strict=True):
            if t < len(episode):
                total += gamma**t * weight * episode[t] / norm
    return total


def _naive_doubly_robust(rewards: Any, log_ratios: Any, q: Any, v: Any, next_v: Any, gamma: float) -> float:
    """The recursion of Jiang and Li: V_DR(t) = V(s_t) + rho_t (r_t + gamma V_DR(t + 1) - Q(s_t, a_t))."""
    total = 0.0
    for episode in range(len(rewards)):
        estimate = next_v[episode][-1]
        for t in reversed(range(len(rewards[episode]))):
            correction = rewards[episode][t] + gamma * estimate - q[episode][t]
            estimate = v[episode][t] + float(np.exp(log_ratios[episode][t])) * correction
        total += estimate
    return total / len(rewards)


def _naive_effective_size(log_ratios: list[Any], gamma: float) -> float:
    """The mean over all steps, with weights gamma^t, of (sum w)^2 / sum w^2 over all episodes at the step's t."""
    weights, total, norm = _weights(log_ratios), 0.0, 0.0
    for episode in log_ratios:
        for t in range(len(episode)):
            at_t = np.array([own[min(t, len(own) - 1)] for own in weights])
            total += gamma**t * at_t.sum() ** 2 / np.square(at_t).sum()
            norm += gamma**t
    return total / norm


@st.composite
def ragged(draw: st.DrawFn) -> tuple[Any, float, bool]:
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=7))
    return np.array(lengths), draw(st.sampled_from([0.0, 0.5, 0.99, 1.0])), draw(st.booleans())


def _columns(lengths: Any, seed: int) -> dict[str, Any]:
    stream = np.random.default_rng(seed)
    columns = {name: stream.normal(size=lengths.sum()) for name in ("rewards", "log_ratios", "q", "v", "final_v")}
    is_last = np.zeros(lengths.sum(), np.bool_)
    is_last[np.cumsum(lengths) - 1] = True
    # V(s_{t+1}) is the next row's V(s_t); at the end of an episode 0 or the final observation's.
    final = columns.pop("final_v") * (stream.random(len(is_last)) < 0.5)
    columns["next_v"] = np.where(is_last, final, np.append(columns["v"][1:], 0.0))
    return columns


@settings(max_examples=150, deadline=None, derandomize=True)
@given(ragged(), st.integers(0, 2**31))
def test_estimates_equal_loops(case: tuple[Any, float, bool], seed: int) -> None:
    lengths, gamma, is_weighted = case
    flat = _columns(lengths, seed)
    split = {name: np.split(column, np.cumsum(lengths)[:-1]) for name, column in flat.items()}
    steps = RecordedSteps(lengths, flat["rewards"], flat["log_ratios"])
    model = ModelValues(flat["q"], flat["v"], flat["next_v"])
    rewards, ratios = split["rewards"], split["log_ratios"]
    residuals = np.split(flat["rewards"] + gamma * flat["next_v"] - flat["q"], np.cumsum(lengths)[:-1])
    initial = float(np.mean([values[0] for values in split["v"]]))
    trajectory, per_decision, robust = (
        (
            estimators.weighted_importance_sampling,
            estimators.weighted_per_decision_importance_sampling,
            estimators.weighted_doubly_robust,
        )
        if is_weighted
        else (
            estimators.importance_sampling,
            estimators.per_decision_importance_sampling,
            estimators.doubly_robust,
        )
    )

    def estimate(estimator: Any) -> Any:
        return pytest.approx(point_estimate(estimator, len(lengths)), rel=1e-9, abs=1e-9)

    assert _naive_is(rewards, ratios, gamma, is_weighted) == estimate(trajectory(steps, gamma))
    assert _naive_per_decision(rewards, ratios, gamma, is_weighted) == estimate(per_decision(steps, gamma))
    expected = initial + _naive_per_decision(residuals, ratios, gamma, is_weighted)
    assert expected == estimate(robust(steps, model, gamma))
    size = per_decision(steps, gamma).effective_sample_size
    assert size == robust(steps, model, gamma).effective_sample_size
    assert size == pytest.approx(_naive_effective_size(ratios, gamma), rel=1e-9)
    if not is_weighted:
        recursion = _naive_doubly_robust(rewards, ratios, split["q"], split["v"], split["next_v"], gamma)
        assert recursion == estimate(robust(steps, model, gamma))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(ragged(), st.integers(0, 2**31))
def test_counts_are_repeated_episodes(case: tuple[Any, float, bool], seed: int) -> None:
    lengths, gamma, _ = case
    flat, stream = _columns(lengths, seed), np.random.default_rng(seed)
    drawn = stream.integers(len(lengths), size=len(lengths))
    counts = np.bincount(drawn, minlength=len(lengths))[None].astype(np.float64)
    first = np.cumsum(lengths) - lengths
    rows = np.concatenate([np.arange(first[episode], first[episode] + lengths[episode]) for episode in drawn])
    steps = RecordedSteps(lengths, flat["rewards"], flat["log_ratios"])
    repeated = RecordedSteps(lengths[drawn], flat["rewards"][rows], flat["log_ratios"][rows])
    model = ModelValues(flat["q"], flat["v"], flat["next_v"])
    repeated_model = ModelValues(flat["q"][rows], flat["v"][rows], flat["next_v"][rows])
    for method in (
        estimators.importance_sampling,
        estimators.weighted_importance_sampling,
        estimators.per_decision_importance_sampling,
        estimators.weighted_per_decision_importance_sampling,
    ):
        expected = point_estimate(method(repeated, gamma), len(drawn))
        assert method(steps, gamma).at(counts) == pytest.approx([expected], rel=1e-9, abs=1e-9)
    for robust in (estimators.doubly_robust, estimators.weighted_doubly_robust):
        expected = point_estimate(robust(repeated, repeated_model, gamma), len(drawn))
        assert robust(steps, model, gamma).at(counts) == pytest.approx([expected], rel=1e-9, abs=1e-9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=10), st.integers(0, 2**31))
def test_running_sums_are_those_of_each_episode(lengths: list[int], seed: int) -> None:
    stream = np.random.default_rng(seed)
    values = stream.normal(size=sum(lengths))
    values[stream.random(len(values)) < 0.05] = -np.inf
    values[stream.random(len(values)) < 0.05] = -1e9  # must not spoil the digits of other episodes
    expected = [np.cumsum(own) for own in np.split(values, np.cumsum(lengths)[:-1])]
    sums = estimators.running_sums(values, np.array(lengths))
    np.testing.assert_allclose(sums, np.concatenate(expected), rtol=1e-12, atol=1e-6)
