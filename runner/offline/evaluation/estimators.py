"""Off-policy estimates of a policy's value from episodes of another policy, as pure functions on arrays.

The value is the expected return, sum over t of gamma^t r_t, of the target policy pi. The recording policy is mu, and
rho_t = pi(a_t|s_t) / mu(a_t|s_t) is the ratio of the probabilities of the *recorded* action; rho_{0:t} is its running
product over the episode, kept as a sum of logarithms. Episodes start at t = 0 and are ragged.

Importance sampling estimates the return of a truncated episode up to the truncation. Estimates with a model
(`direct_method`, `doubly_robust`) add the model's value of the final observation. If episodes are truncated, the two
kinds therefore estimate different quantities.

Dimension letters: E episodes, R rows (steps of all episodes, concatenated), T steps of the longest episode,
B resamples. All arrays are float64 unless stated otherwise.

* Precup, Sutton and Singh, 2000, Eligibility traces for off-policy policy evaluation, ICML.
* Jiang and Li, 2016, Doubly robust off-policy value evaluation for reinforcement learning, ICML, arXiv 1511.03722.
* Thomas and Brunskill, 2016, Data-efficient off-policy policy evaluation for RL, ICML, arXiv 1604.00923.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# Larger ratios are clipped to e^600 so that sums of weighted returns stay finite. One such weight outweighs all others,
# and the effective sample size, which is not clipped, is then 1.
_MAX_LOG_WEIGHT = 600.0
# Maximum number of cells in arrays (E, part of T) and (part of B, E): 32 MiB each.
_MAX_CELLS = 2**22
# Sums of weights below this fraction of the largest weight suffer from rounding.
_SMALLEST_WEIGHT_SUM = 1e-200


@dataclass(frozen=True, eq=False)
class RecordedSteps:
    """R steps of E complete episodes.

    Attributes:
        lengths: (E,) int64 steps per episode, at least 1.
        rewards: (R,).
        log_ratios: (R,) log pi(a_t|s_t) - log mu(a_t|s_t); -inf if the target policy never takes the action.

    Raises:
        ValueError: shapes do not match, rewards are not finite, or ratios are NaN or positive infinity.
    """

    lengths: IntArray
    rewards: Array
    log_ratios: Array

    def __post_init__(self) -> None:
        if len(self.lengths) == 0 or self.lengths.min() < 1:
            raise ValueError("every episode needs at least one step")
        for name, rows in (("rewards", self.rewards), ("log_ratios", self.log_ratios)):
            if rows.shape != (int(self.lengths.sum()),):
                raise ValueError(f"{name} must have shape ({int(self.lengths.sum())},), got {rows.shape}")
        if not np.isfinite(self.rewards).all():
            raise ValueError("rewards must be finite")
        if np.isnan(self.log_ratios).any() or np.isposinf(self.log_ratios).any():
            raise ValueError("log_ratios must be finite, or -inf for actions that the target policy never takes")

    @cached_property
    def first_rows(self) -> IntArray:
        """(E,) row of each episode's first step."""
        return first_rows_of(self.lengths)

    @cached_property
    def times(self) -> IntArray:
        """(R,) time step t of each row."""
        return times_of(self.lengths)

    @cached_property
    def running_log_ratios(self) -> Array:
        """(R,) log rho_{0:t}."""
        return running_sums(self.log_ratios, self.lengths)

    @cached_property
    def episode_log_ratios(self) -> Array:
        """(E,) log rho_{0:H-1} of complete episodes."""
        last: Array = self.running_log_ratios[self.first_rows + self.lengths - 1]
        return last

    def discounted_sums(self, terms: Array, gamma: float) -> Array:
        """Return (E,) sums over t of gamma^t terms_t, from terms (R,)."""
        sums: Array = np.add.reduceat(gamma**self.times * terms, self.first_rows)
        return sums


@dataclass(frozen=True, eq=False)
class ModelValues:
    """Action values of the target policy for the recorded steps, according to a model.

    Attributes:
        q_values: (R,) Q(s_t, a_t) of the recorded actions.
        values: (R,) V(s_t), the expectation of Q(s_t, a) over the target policy's actions.
        next_values: (R,) V(s_{t+1}), including the final observation of truncated episodes; 0 after a termination.
    """

    q_values: Array
    values: Array
    next_values: Array


class Estimator(Protocol):
    """Estimate as a function of the number of times each episode counts."""

    @property
    def effective_sample_size(self) -> float:
        """Kish's (sum w)^2 / sum w^2, at most E."""

    def at(self, counts: Array) -> Array:
        """Return the estimates (B,) for episode counts (B, E); NaN if no episode has any weight."""


def importance_sampling(steps: RecordedSteps, gamma: float) -> Estimator:
    """Estimate IS: 1/E sum_e rho_{0:H-1} G_e, G_e the discounted return. Unbiased (Precup et al., 2000, section 2)."""
    weights = _weights(steps.episode_log_ratios)
    returns = steps.discounted_sums(steps.rewards, gamma)
    return _EpisodeMean(weights * returns, float(kish(steps.episode_log_ratios)))


def weighted_importance_sampling(steps: RecordedSteps, gamma: float) -> Estimator:
    """Estimate WIS: sum_e rho_{0:H-1} G_e / sum_e rho_{0:H-1}. Consistent, biased (Precup et al., 2000, section 2)."""
    returns = steps.discounted_sums(steps.rewards, gamma)
    return _WeightedReturns(steps.episode_log_ratios, returns, float(kish(steps.episode_log_ratios)))


def per_decision_importance_sampling(steps: RecordedSteps, gamma: float) -> Estimator:
    """Estimate PDIS: 1/E sum_e sum_t gamma^t rho_{0:t} r_t. Unbiased (Precup et al., 2000, section 3).

    The effective sample size is computed from the ratios rho_{0:t} of all episodes at each t and averaged over the
    recorded steps with weights gamma^t. Ended episodes keep their last ratio.
    """
    terms = _weights(steps.running_log_ratios) * steps.rewards
    return _EpisodeMean(steps.discounted_sums(terms, gamma), _mean_kish_of_steps(steps, gamma))


def weighted_per_decision_importance_sampling(steps: RecordedSteps, gamma: float) -> Estimator:
    """Estimate WPDIS: sum_t gamma^t (sum_e rho_{0:t} r_t) / (sum_e rho_{0:t}); Precup et al., 2000, section 3.

    The weights at each t sum to 1 over all episodes. An ended episode stays in an absorbing state with reward 0 and
    keeps its last ratio (Thomas and Brunskill, 2016, section 3). Consistent and biased.
    """
    return _WeightedSteps(steps, steps.rewards, np.zeros(len(steps.lengths)), gamma)


def direct_method(initial_values: Array) -> Estimator:
    """Estimate DM: 1/E sum_e V(s_0), from values (E,) of a model. The interval ignores the model's error."""
    return _EpisodeMean(initial_values, float(len(initial_values)))


def doubly_robust(steps: RecordedSteps, model: ModelValues, gamma: float) -> Estimator:
    """Estimate DR: 1/E sum_e [V(s_0) + sum_t gamma^t rho_{0:t} (r_t + gamma V(s_{t+1}) - Q(s_t, a_t))].

    Eq. 10 of Jiang and Li, 2016, written as a sum. Unbiased for any model fitted without these episodes. A better model
    reduces the variance. See `per_decision_importance_sampling` for the effective sample size.
    """
    corrections = _weights(steps.running_log_ratios) * _residuals(steps, model, gamma)
    values = model.values[steps.first_rows] + steps.discounted_sums(corrections, gamma)
    return _EpisodeMean(values, _mean_kish_of_steps(steps, gamma))


def weighted_doubly_robust(steps: RecordedSteps, model: ModelValues, gamma: float) -> Estimator:
    """Estimate WDR: as `doubly_robust`, with the weights of `weighted_per_decision_importance_sampling`.

    Section 5 of Thomas and Brunskill, 2016. Consistent and biased, usually with the smallest error.
    """
    return _WeightedSteps(steps, _residuals(steps, model, gamma), model.values[steps.first_rows], gamma)


def point_estimate(estimator: Estimator, num_episodes: int) -> float:
    """Return the estimate that counts each of E episodes once."""
    return float(estimator.at(np.ones((1, num_episodes)))[0])


def bootstrap_estimates(
    estimators: Mapping[str, Estimator], num_episodes: int, num_resamples: int, stream: np.random.Generator
) -> dict[str, Array]:
    """Compute each estimate from resamples of the episodes with replacement, shared by all estimators.

    Args:
        estimators: name -> estimator over the same E episodes.
        num_episodes: E.
        num_resamples: B.
        stream: draws the episodes.

    Returns:
        Name -> estimates (B,).
    """
    per_pass = max(1, _MAX_CELLS // num_episodes)
    parts: dict[str, list[Array]] = {name: [] for name in estimators}
    for first in range(0, num_resamples, per_pass):
        counts = _resample_counts(num_episodes, min(per_pass, num_resamples - first), stream)
        for name, estimator in estimators.items():
            parts[name].append(estimator.at(counts))
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def percentile_interval(estimates: Array, level: float) -> tuple[float, float]:
    """Return the percentile bootstrap interval (Efron, 1979) at a level such as 0.95, from estimates (B,).

    Resamples without an estimate (NaN) are ignored. The bounds are NaN if none is left.
    """
    known = estimates[~np.isnan(estimates)]
    if len(known) == 0:
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def kish(log_weights: Array) -> Array:
    """Return the effective sample sizes (sum w)^2 / sum w^2 (Kish, 1965) from log weights (E, ...); 0 if all are 0."""
    weights = np.exp(log_weights - _finite_max(log_weights))
    sums, squares = weights.sum(0), np.square(weights).sum(0)
    sizes: Array = np.square(sums) / np.where(squares > 0, squares, 1.0)
    return sizes


def running_sums(values: Array, lengths: IntArray) -> Array:
    """Return running sums (R,) over each episode's values, in log2(T) vectorised passes.

    A single cumulative sum over all rows would carry -inf and rounding errors into later episodes.
    """
    sums, times = values.astype(np.float64), times_of(lengths)
    shift = 1
    while shift < lengths.max():
        sums[shift:] += np.where(times[shift:] >= shift, sums[:-shift], 0.0)
        shift *= 2
    return sums


def first_rows_of(lengths: IntArray) -> IntArray:
    """Return the row (E,) of each episode's first step."""
    return np.cumsum(lengths) - lengths


def times_of(lengths: IntArray) -> IntArray:
    """Return the time step t (R,) of each row."""
    times: IntArray = np.arange(lengths.sum()) - np.repeat(first_rows_of(lengths), lengths)
    return times


# --- kinds of estimates -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _EpisodeMean:
    """Mean over episodes of one number per episode (E,)."""

    values: Array
    effective_sample_size: float

    def at(self, counts: Array) -> Array:
        estimates: Array = counts @ self.values / len(self.values)
        return estimates


@dataclass(frozen=True, eq=False)
class _WeightedReturns:
    """Weighted mean over episodes of one number per episode (E,), with normalised weights."""

    log_weights: Array
    values: Array
    effective_sample_size: float

    def at(self, counts: Array) -> Array:
        return _weighted_means(self.log_weights[:, None], self.values[:, None], counts)[:, 0]


@dataclass(frozen=True, eq=False)
class _WeightedSteps:
    """Mean of `initial` (E,) plus, for each t, gamma^t times the weighted mean of the terms (R,) at t."""

    steps: RecordedSteps
    terms: Array
    initial: Array
    gamma: float

    @cached_property
    def effective_sample_size(self) -> float:
        return _mean_kish_of_steps(self.steps, self.gamma)

    def at(self, counts: Array) -> Array:
        estimates: Array = counts @ self.initial / len(self.initial)
        for part in _parts_of_time(self.steps):
            terms = np.where(part.is_running, self.terms[part.rows], 0.0)
            means = _weighted_means(part.log_ratios, terms, counts)
            estimates += means @ self.gamma**part.times
        return estimates


@dataclass(frozen=True, eq=False)
class _PartOfTime:
    """A range of consecutive time steps of all episodes.

    Attributes:
        times: (P,) time steps t.
        rows: (E, P) row of each episode at each t; the last row after its end.
        is_running: (E, P) bool, whether the episode has that step.
        log_ratios: (E, P) log rho_{0:t}; the last one after the end.
    """

    times: IntArray
    rows: IntArray
    is_running: npt.NDArray[np.bool_]
    log_ratios: Array


def _parts_of_time(steps: RecordedSteps) -> Iterator[_PartOfTime]:
    lengths, longest = steps.lengths[:, None], int(steps.lengths.max())
    width = max(1, _MAX_CELLS // len(lengths))
    for first in range(0, longest, width):
        times = np.arange(first, min(first + width, longest))
        rows = steps.first_rows[:, None] + np.minimum(times, lengths - 1)
        yield _PartOfTime(times, rows, times < lengths, steps.running_log_ratios[rows])


def _weighted_means(log_weights: Array, values: Array, counts: Array) -> Array:
    """Return means (B, P) over episodes of values (E, P), with weights exp(log_weights) (E, P) * counts (B, E)."""
    weights = np.exp(log_weights - _finite_max(log_weights))
    sums = counts @ weights  # (B, P), at least 1 if the episode with the largest weight was drawn
    means: Array = counts @ (weights * values)
    np.divide(means, sums, out=means, where=sums > 0)
    means[sums <= 0] = np.nan
    is_too_small = (sums < _SMALLEST_WEIGHT_SUM) & (log_weights.max(0) > -np.inf)
    for resample in np.flatnonzero(is_too_small.any(1)):
        _rescale_means(means[resample], log_weights, values, counts[resample])
    return means


def _rescale_means(means: Array, log_weights: Array, values: Array, counts: Array) -> None:
    """Write the means (P,) of a resample with counts (E,), with weights relative to the largest one drawn."""
    is_drawn = counts > 0
    drawn = log_weights[is_drawn]
    weights = np.exp(drawn - _finite_max(drawn)) * counts[is_drawn, None]
    sums = weights.sum(0)
    np.divide((weights * values[is_drawn]).sum(0), sums, out=means, where=sums > 0)


def _finite_max(log_weights: Array) -> Array:
    """Return the maxima (...) of (E, ...); 0 if all are -inf."""
    largest: Array = log_weights.max(0)
    return np.where(np.isneginf(largest), 0.0, largest)


def _weights(log_ratios: Array) -> Array:
    weights: Array = np.exp(np.minimum(log_ratios, _MAX_LOG_WEIGHT))
    return weights


def _residuals(steps: RecordedSteps, model: ModelValues, gamma: float) -> Array:
    """Return (R,) r_t + gamma V(s_{t+1}) - Q(s_t, a_t)."""
    return steps.rewards + gamma * model.next_values - model.q_values


def _mean_kish_of_steps(steps: RecordedSteps, gamma: float) -> float:
    """Return the effective sample size at each t, averaged over the recorded steps with weights gamma^t."""
    total, total_weight = 0.0, 0.0
    for part in _parts_of_time(steps):
        weights = gamma**part.times * part.is_running.sum(0)
        total += float(weights @ kish(part.log_ratios))
        total_weight += float(weights.sum())
    return total / total_weight


def _resample_counts(num_episodes: int, num_resamples: int, stream: np.random.Generator) -> Array:
    """Return the number of times (B, E) each episode is drawn in E draws with replacement."""
    draws: npt.NDArray[Any] = stream.integers(num_episodes, size=(num_resamples, num_episodes))
    draws += np.arange(num_resamples)[:, None] * num_episodes
    counts = np.bincount(draws.reshape(-1), minlength=num_resamples * num_episodes)
    return counts.reshape(num_resamples, num_episodes).astype(np.float64)
