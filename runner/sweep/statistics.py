"""Statistics over the seeds of a combination (inter-quartile means, confidence intervals), and the order of trials.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021
(https://arxiv.org/abs/2108.13264): results of a few seeds are best summarised by the inter-quartile mean and a
bootstrap interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from runner.config.metric_words import words_of
from runner.sweep.space import Combination, combination_key, override_text, without_seed
from runner.sweep.trials import SweepFolder, Trial
from runner.tracking.headline import ENV_STEPS, count_text
from runner.tracking.plain_values import finite_number

CONFIDENCE = 0.95
FEWEST_VALUES = 3  # with fewer values no interval is computed
_TRIMMED = 0.25  # fraction of the values at each end
_NUM_RESAMPLES = 2000
_MOST_NUMBERS = 2_000_000  # maximum of resampled numbers in memory, 16 MB

Curve = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """Summary of the results of several seeds; unknown values are NaN.

    Attributes:
        mean: mean of the values.
        iqm: inter-quartile mean: a quarter of the values, rounded down, is dropped at each end. It is the mean of up to
            three values.
        low, high: ends of the 95 % percentile bootstrap interval of `iqm`. NaN with fewer than three values: resamples
            of two values consist of these two, so the interval would only repeat them and claim far too much.
        num: number of values.
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
    """Trials that differ only in their seeds.

    Attributes:
        combination: the shared values.
        trials: in the order of their numbers.
    """

    combination: Combination
    trials: tuple[Trial, ...]

    @property
    def overrides(self) -> list[str]:
        """The differences from other groups, as overrides."""
        return [override_text(key, value) for key, value in self.combination.items()]

    def estimate(self, metric: str) -> Estimate:
        """Estimate from the last values of a metric; trials without a value are ignored."""
        return estimate([_number(trial.result.get(metric)) for trial in self.trials])


def group_by_combination(trials: Sequence[Trial]) -> list[SeedGroup]:
    """Group trials whose combinations differ only in the seed, in the order of their first trials."""
    groups: dict[tuple[tuple[str, str], ...], list[Trial]] = {}
    for trial in trials:
        groups.setdefault(combination_key(without_seed(trial.combination)), []).append(trial)
    return [SeedGroup(without_seed(trials[0].combination), tuple(trials)) for trials in groups.values()]


def estimate(values: ArrayLike) -> Estimate:
    """Return the summary of the results of several seeds.

    Args:
        values: [num_seeds]; NaN and infinite values are ignored.
    """
    column = np.asarray(values, np.float64).reshape(-1, 1)
    curve = estimate_curve(column)
    mean, iqm, low, high = (float(values[0]) for values in (curve.mean, curve.iqm, curve.low, curve.high))
    return Estimate(mean, iqm, low, high, int(curve.num[0]))


def estimate_curve(values: ArrayLike) -> CurveEstimate:
    """Return the summary of the results of several seeds at each point of a curve.

    Equal values give the same interval, independent of the time and of other points.

    Args:
        values: [num_seeds, num_points]; NaN if a seed does not have a value; infinite values are ignored.
    """
    numbers = np.asarray(values, np.float64)
    is_known = np.isfinite(numbers)
    num = is_known.sum(axis=0)
    estimated = np.full((4, numbers.shape[1]), np.nan)
    # Points with values of the same seeds are computed together.
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
        method="percentile",  # defined for equal values, unlike the other methods
        rng=np.random.default_rng(0),
    ).confidence_interval
    # Sums of equal numbers in another order differ in their last digits.
    return np.stack([mean, iqm, np.minimum(interval.low, iqm), np.maximum(interval.high, iqm)])


def interquartile_mean(values: ArrayLike, axis: int = 0) -> Any:
    """Return the mean without the lowest and the highest quarter, each rounded down to a number of values.

    Args:
        values: finite numbers, at least one along `axis`.
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


_Key = tuple[bool, float, float, int]  # smaller is better


@dataclass(frozen=True)
class Ranking:
    """The trials of a sweep, best first.

    Combinations are ranked by the inter-quartile mean of the first objective over their seeds. A combination with one
    trial is ranked by its value. Values at or above the target count as the target, because such trials stopped
    there. Equal combinations are ranked by the env steps that they needed, then by their numbers. Within a
    combination, trials are ranked by the same rule.

    Attributes:
        groups: the trials of each combination, the best combination first; combinations without a value last.
        trials: all trials, in the order of `groups`.
        reason: why the first trial is the best one; "" while no trial has a value.
    """

    groups: list[SeedGroup]
    trials: list[Trial]
    metric: str
    reason: str

    @property
    def best(self) -> Trial | None:
        """The best trial, or None while no trial has a value."""
        return self.trials[0] if self.reason else None

    def estimates(self) -> list[tuple[SeedGroup, Estimate]]:
        """Return each combination with the estimate of the first objective over its seeds, best first."""
        return [(group, group.estimate(self.metric)) for group in self.groups]


def rank(trials: Sequence[Trial], objectives: Mapping[str, str], target: float | None = None) -> Ranking:
    """Rank trials by the first of the objectives.

    Args:
        trials: trials of one sweep.
        objectives: metric -> `max` or `min`.
        target: value of the first objective at which trials stop, if it is a stop criterion.
    """
    metric, mode = next(iter(objectives.items()))
    target = target if mode == "max" else None

    def key(of: Sequence[Trial]) -> _Key:
        values = [value for trial in of if (value := finite_number(trial.result.get(metric))) is not None]
        if not values:
            return True, 0.0, 0.0, of[0].number
        counted = values if target is None else [min(value, target) for value in values]
        steps = [float(trial.result.get(ENV_STEPS) or 0) for trial in of]
        sign = -1.0 if mode == "max" else 1.0
        return False, sign * interquartile_mean(counted), interquartile_mean(steps), of[0].number

    groups = sorted(group_by_combination(trials), key=lambda group: key(group.trials))
    ranked = [trial for group in groups for trial in sorted(group.trials, key=lambda trial: key([trial]))]
    reason = _reason(groups[0], metric, mode, target) if groups and not key(groups[0].trials)[0] else ""
    return Ranking(groups, ranked, metric, reason)


def rank_folder(folder: SweepFolder) -> Ranking:
    """Rank the trials of a sweep's folder."""
    return rank(folder.trials, folder.objectives, folder.target)


def _reason(best: SeedGroup, metric: str, mode: str, target: float | None) -> str:
    """Describe the reason why a combination is the best one, and how its first trial was chosen."""
    values = [value for trial in best.trials if (value := finite_number(trial.result.get(metric))) is not None]
    seeds = f" (inter-quartile mean of {len(values)} seeds)" if len(values) > 1 else ""
    if target is not None and interquartile_mean([min(value, target) for value in values]) >= target:
        steps = interquartile_mean([float(trial.result.get(ENV_STEPS) or 0) for trial in best.trials])
        return f"reached {words_of(metric)} {target:g} in the fewest env steps: {count_text(steps)}{seeds}"
    best_is = "highest" if mode == "max" else "lowest"
    return f"{best_is} {words_of(metric)}: {interquartile_mean(values):.6g}{seeds}"
