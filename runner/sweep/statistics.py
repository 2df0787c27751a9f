"""Statistics over the seeds of a combination: inter-quartile means and their confidence intervals.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021
(https://arxiv.org/abs/2108.13264): a few seeds are best told by the inter-quartile mean and a bootstrap interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from runner.sweep.space import Combination, combination_key, override_text, without_seed
from runner.sweep.trials import Trial
from runner.tracking.plain_values import finite_number

CONFIDENCE = 0.95
FEWEST_VALUES = 3  # below it no interval is given
_TRIMMED = 0.25  # of the values at each end
_NUM_RESAMPLES = 2000
_MOST_NUMBERS = 2_000_000  # resampled numbers in memory at once, 16 MB

Curve = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """What seeds reach; NaN is what is not known.

    Attributes:
        mean: of the values.
        iqm: their inter-quartile mean: a quarter of them, rounded down, is left out at each end. Up to three values
            have none to leave out: it is their mean.
        low, high: ends of the 95 % percentile bootstrap interval of `iqm`. NaN with fewer than three values: resamples
            of two are made of these two numbers, so that an interval would only repeat them and claim far too much.
        num: how many values there are.
    """

    mean: float
    iqm: float
    low: float
    high: float
    num: int


@dataclass(frozen=True)
class CurveEstimate:
    """An `Estimate` at each point of a curve: `mean`, `iqm`, `low`, `high` float64 [num_points], `num` int64."""

    mean: Curve
    iqm: Curve
    low: Curve
    high: Curve
    num: NDArray[np.int64]


@dataclass(frozen=True)
class SeedGroup:
    """The trials that differ in their seeds only.

    Attributes:
        combination: what they share.
        trials: in the order of their numbers.
    """

    combination: Combination
    trials: tuple[Trial, ...]

    @property
    def overrides(self) -> list[str]:
        """What it differs in from other groups, as on the command line."""
        return [override_text(key, value) for key, value in self.combination.items()]

    def estimate(self, metric: str) -> Estimate:
        """Estimate from the last values of a metric; trials without one do not count."""
        return estimate([_number(trial.result.get(metric)) for trial in self.trials])


def group_by_combination(trials: Sequence[Trial]) -> list[SeedGroup]:
    """Return trials with the same combination but for the seed, in the order of their first ones."""
    groups: dict[tuple[tuple[str, str], ...], list[Trial]] = {}
    for trial in trials:
        groups.setdefault(combination_key(without_seed(trial.combination)), []).append(trial)
    return [SeedGroup(without_seed(trials[0].combination), tuple(trials)) for trials in groups.values()]


def estimate(values: ArrayLike) -> Estimate:
    """Return what seeds reach.

    Args:
        values: [num_seeds]; NaN and infinite ones do not count.
    """
    column = np.asarray(values, np.float64).reshape(-1, 1)
    curve = estimate_curve(column)
    mean, iqm, low, high = (float(values[0]) for values in (curve.mean, curve.iqm, curve.low, curve.high))
    return Estimate(mean, iqm, low, high, int(curve.num[0]))


def estimate_curve(values: ArrayLike) -> CurveEstimate:
    """Return what seeds reach at each point of a curve.

    The same values give the same interval, at any time and beside any other points.

    Args:
        values: [num_seeds, num_points]; NaN where a seed has no value, infinite ones do not count.
    """
    numbers = np.asarray(values, np.float64)
    is_known = np.isfinite(numbers)
    num = is_known.sum(axis=0)
    estimated = np.full((4, numbers.shape[1]), np.nan)
    # Points that the same seeds reach are computed together.
    for seeds in np.unique(is_known[:, num > 0], axis=1).T:
        points = np.flatnonzero((is_known == seeds[:, None]).all(axis=0))
        estimated[:, points] = _estimate_known(numbers[np.ix_(seeds, points)])
    mean, iqm, low, high = estimated
    return CurveEstimate(mean, iqm, low, high, num)


def _estimate_known(values: Curve) -> Curve:
    """Return `mean, iqm, low, high` [4, num_points] of values without gaps [num_seeds, num_points]."""
    import scipy.stats  # type: ignore[import-untyped]  # takes half a second

    mean, iqm = values.mean(axis=0), interquartile_mean(values)
    nothing = np.full_like(iqm, np.nan)
    if len(values) < FEWEST_VALUES:
        return np.stack([mean, iqm, nothing, nothing])
    interval = scipy.stats.bootstrap(
        (values,),
        interquartile_mean,
        n_resamples=_NUM_RESAMPLES,
        batch=max(1, _MOST_NUMBERS // values.size),
        vectorized=True,
        axis=0,
        confidence_level=CONFIDENCE,
        method="percentile",  # it is defined for equal values too, others are not
        rng=np.random.default_rng(0),
    ).confidence_interval
    # Sums of equal numbers in another order differ in their last digits.
    return np.stack([mean, iqm, np.minimum(interval.low, iqm), np.maximum(interval.high, iqm)])


def interquartile_mean(values: ArrayLike, axis: int = 0) -> Any:
    """Return the mean without the lowest and the highest quarter, each rounded down to whole values.

    Args:
        values: numbers, finite and at least one along `axis`.
        axis: the axis of the seeds.

    Returns:
        float64 without that axis; a number for a list of numbers.
    """
    numbers = np.sort(np.asarray(values, np.float64), axis=axis)
    num_cut = int(_TRIMMED * numbers.shape[axis])
    kept = np.take(numbers, range(num_cut, numbers.shape[axis] - num_cut), axis=axis)
    return kept.mean(axis=axis)


def _number(value: object) -> float:
    number = finite_number(value)
    return float("nan") if number is None else number
