"""Importance of the searched keys, and the objective over the two most important ones."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from runner.config.metric_words import title_of, words_of
from runner.pages import charts
from runner.pages.page import Block, Figure, Text
from runner.report.sweep_record import SweepRecord, as_number, distinct_texts, short_names
from runner.sweep.space import SEED
from runner.sweep.trials import Trial
from runner.tracking.headline import number_text
from runner.tracking.series import plain

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_FEWEST_TRIALS = 10
_MOST_TRIALS = 400  # 1,000 trials of 8 keys would take 20 seconds
_ENOUGH_PER_KEY = 10  # fewer trials per key give a rough estimate
_LARGE_RATIO = 10.0  # numbers that differ by this factor get a logarithmic axis
_CELLS = 36  # cells of a surface along each axis
_FEW_VALUES = 12
_NOT_ENDED = ("waiting", "running")
_CELL_HEIGHT = 40  # pixels

_Array = NDArray[np.float64]
_KeyColumn = tuple[str, tuple[Any, ...], bool]  # name, a number or a text per trial, whether it is logarithmic


@dataclass(frozen=True, eq=False)
class _Key:
    """A searched key with its value in each trial.

    Attributes:
        name: the key.
        title: short name.
        values: value of each trial.
        numbers: values as numbers, or None if one of them is not a number.
        is_interval: whether values are drawn from an interval, not from a list.
        is_log: whether equal factors have equal distances.
    """

    name: str
    title: str
    values: Sequence[Any]
    numbers: _Array | None
    is_interval: bool
    is_log: bool

    @classmethod
    def of(cls, name: str, title: str, domain: Any, values: Sequence[Any]) -> _Key:
        numbers = [as_number(value) for value in values]
        is_numeric = name != SEED and None not in numbers and len(set(numbers)) > 1
        found = np.array(numbers, np.float64) if is_numeric else None
        is_positive = found is not None and found.min() > 0
        is_interval = found is not None and isinstance(domain, dict)
        is_log = bool(domain.get("log")) if isinstance(domain, dict) else is_positive and _is_wide(found)
        return cls(name, title, values, found, is_interval, bool(is_log and is_positive))

    @property
    def texts(self) -> list[str]:
        """Distinct values as texts, numbers in order."""
        return distinct_texts(map(str, self.values))

    @property
    def places(self) -> _Array:
        """Numbers from 0 to 1 along the axis of the key."""
        assert self.numbers is not None
        places = np.log(self.numbers) if self.is_log else self.numbers
        result: _Array = (places - places.min()) / (places.max() - places.min())
        return result

    def number_at(self, place: float) -> float:
        """Return the inverse of `places`."""
        assert self.numbers is not None
        start, end = float(self.numbers.min()), float(self.numbers.max())
        if self.is_log:
            return math.exp(math.log(start) + place * (math.log(end) - math.log(start)))
        return start + place * (end - start)

    @property
    def column(self) -> _KeyColumn:
        """The key as a hashable value."""
        values = tuple(map(str, self.values) if self.numbers is None else self.numbers.tolist())
        return self.name, values, self.is_log


def _is_wide(numbers: Any) -> bool:
    return bool(numbers.max() / numbers.min() >= _LARGE_RATIO)


def importance(record: SweepRecord) -> Iterator[Block]:
    """Yield the importance of the keys and the objective over two of them, or the reason why they are missing."""
    trials = [
        trial
        for trial in record.trials
        if trial.status not in _NOT_ENDED and as_number(trial.result.get(record.metric)) is not None
    ]
    keys = _varied_keys(record, trials)
    if len(keys) < 2:
        return
    if reason := _reason_against(record, trials):
        yield Text(reason)
        return
    objective = np.array([as_number(trial.result.get(record.metric)) for trial in trials], np.float64)
    found = key_importances(keys, objective)
    yield _bars(record, found, len(trials))
    yield from _over_two_keys(record, [key for key in found if key.name != SEED], trials, objective)


def _varied_keys(record: SweepRecord, trials: Sequence[Trial]) -> list[_Key]:
    """Return the keys that have a value in every trial, and different ones."""
    names, space = short_names([*record.keys, SEED]), record.searched["space"]
    values = {name: [trial.values.get(name) for trial in trials] for name in names}
    return [
        _Key.of(name, names[name], space.get(name), tried)
        for name, tried in values.items()
        if None not in tried and len(set(map(str, tried))) > 1
    ]


def _reason_against(record: SweepRecord, trials: Sequence[Trial]) -> str:
    """Return why importances cannot be computed; empty if they can."""
    if record.mutations:
        return "Values change during the trials of a population, so no importances are computed."
    if len(trials) < _FEWEST_TRIALS:
        return f"Importances need at least {_FEWEST_TRIALS} ended trials with a value; this sweep has {len(trials)}."
    used = trials[:: _step_of(len(trials))]
    if len({trial.result.get(record.metric) for trial in used}) == 1:
        most = "All" if len(used) == len(trials) else "Nearly all"
        return f"{most} trials have the same {words_of(record.metric)}, so no key is more important than another."
    return ""


def _step_of(num_trials: int) -> int:
    """Return the distance between the trials that importances are computed from."""
    return math.ceil(num_trials / _MOST_TRIALS)


def key_importances(keys: Sequence[_Key], objective: _Array) -> dict[_Key, float]:
    """Return the share of the objective's variance that each key explains alone (fANOVA), largest first.

    Args:
        keys: searched keys with at least two values each.
        objective: objective of each trial, best first. Of many trials, only some are used, at equal distances.
    """
    step = _step_of(len(objective))
    used = [(name, values[::step], is_log) for name, values, is_log in (key.column for key in keys)]
    shares = _shares(tuple(used), tuple(objective[::step].tolist()))
    ranked = sorted(keys, key=lambda key: -shares.get(key.name, 0.0))
    return {key: shares.get(key.name, 0.0) for key in ranked}  # a key may have a single value in the trials used


@lru_cache(maxsize=8)  # a live page asks again and again
def _shares(columns: tuple[_KeyColumn, ...], objective: tuple[float, ...]) -> dict[str, float]:
    import optuna

    distributions = {name: _distribution(values, is_log) for name, values, is_log in columns}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study()
    for drawn, reached in zip(zip(*(values for _, values, _ in columns), strict=True), objective, strict=True):
        parameters = dict(zip(distributions, drawn, strict=True))
        study.add_trial(optuna.trial.create_trial(params=parameters, distributions=distributions, value=reached))
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations between Optuna and scikit-learn
        return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))


def _distribution(values: tuple[Any, ...], is_log: bool) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if isinstance(values[0], str):
        return CategoricalDistribution(list(dict.fromkeys(values)))
    return FloatDistribution(min(values), max(values), log=is_log)


def _bars(record: SweepRecord, found: Mapping[_Key, float], num_trials: int) -> Figure:
    rows = [{"name": key.title, "x": plain(100 * share), "text": f"{share:.0%}"} for key, share in found.items()]
    texts = ["Share of the objective's variance that a key explains (fANOVA)."]
    if num_trials < _ENOUGH_PER_KEY * len(found):
        texts.append(f"{num_trials} trials are few for {len(found)} keys, so these are rough estimates.")
    if any(key.name == SEED for key in found):
        texts.append("A large share of the seed means that differences between trials are mostly chance.")
    num_stopped = Counter(trial.status for trial in record.trials)["stopped"]
    if num_stopped:
        texts.append(f"{num_stopped} trials that were stopped early count with their last value.")
    return Figure(
        name="importance",
        chart=charts.bars(f"importance for {words_of(record.metric)} (%)"),
        points={charts.POINTS: rows},
        caption=" ".join(texts),
        title="Importance",
        metric=record.metric,
        height=26 * len(rows),
    )


# -- two keys ---------------------------------------------------------------------------------------------------------


def _over_two_keys(
    record: SweepRecord, ranked: Sequence[_Key], trials: Sequence[Trial], objective: _Array
) -> Iterator[Block]:
    """Yield a heat map of the two most important keys; numbers are preferred."""
    numeric = [key for key in ranked if key.numbers is not None]
    listed = [key for key in ranked if not key.is_interval and len(key.texts) <= _FEW_VALUES]
    pair = next((keys[:2] for keys in (numeric, listed) if len(keys) > 1), None)
    if pair is None:
        return
    draw: Callable[..., Figure] = _cells if all(key in listed for key in pair) else _surface
    yield draw(record, *pair, trials, objective)


def _cells(record: SweepRecord, x: _Key, y: _Key, trials: Sequence[Trial], objective: _Array) -> Figure:
    """Return the mean objective of each pair of values."""
    of_pairs: dict[tuple[str, str], list[float]] = {}
    for pair, reached in zip(zip(map(str, x.values), map(str, y.values), strict=True), objective, strict=True):
        of_pairs.setdefault(pair, []).append(float(reached))
    rows = [
        {"x": at, "y": up, "value": plain(fmean(values)), "text": number_text(fmean(values)), "num": len(values)}
        for (at, up), values in of_pairs.items()
    ]
    values = tuple(x.texts), tuple(reversed(y.texts))
    return Figure(
        name="two_keys",
        chart=charts.cells(*values, x.title, y.title, title_of(record.metric), record.mode),
        points={charts.POINTS: rows},
        caption="Mean over the trials with both values.",
        title=f"{title_of(record.metric)} by {x.title} and {y.title}",
        metric=f"{x.name}, {y.name}",
        height=max(90, _CELL_HEIGHT * len(y.texts)),
    )


def _surface(record: SweepRecord, x: _Key, y: _Key, trials: Sequence[Trial], objective: _Array) -> Figure:
    """Return the objective interpolated between the trials, which are drawn as points."""
    assert x.numbers is not None
    assert y.numbers is not None
    points = [
        {"x": plain(at), "y": plain(up), "value": plain(reached), "trial": trial.number, "values": trial.values_text}
        for at, up, reached, trial in zip(x.numbers, y.numbers, objective, trials, strict=True)
    ]
    return Figure(
        name="two_keys",
        chart=charts.surface(x.title, y.title, title_of(record.metric), record.mode, x.is_log, y.is_log),
        points={charts.CELLS: list(_interpolated(x, y, objective)), charts.POINTS: points},
        caption="One point per trial; colours between them are interpolated.",
        title=f"{title_of(record.metric)} by {x.title} and {y.title}",
        metric=f"{x.name}, {y.name}",
        height=340,
    )


def _interpolated(x: _Key, y: _Key, objective: _Array) -> Iterator[dict[str, Any]]:
    """Yield cells between the trials; none if all trials are on a line."""
    from scipy.interpolate import griddata  # type: ignore[import-untyped]
    from scipy.spatial import QhullError  # type: ignore[import-untyped]

    places, which = np.unique(np.stack([x.places, y.places], axis=1), axis=0, return_inverse=True)
    means = np.bincount(which.ravel(), objective) / np.bincount(which.ravel())
    edges = np.linspace(0.0, 1.0, _CELLS + 1)
    centres = (edges[:-1] + edges[1:]) / 2
    try:
        values = griddata(places, means, tuple(np.meshgrid(centres, centres, indexing="ij")), method="linear")
    except (QhullError, ValueError):
        return
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            ends = [plain(x.number_at(edges[row + end])) for end in (0, 1)]
            heights = [plain(y.number_at(edges[column + end])) for end in (0, 1)]
            yield {"x": ends[0], "x2": ends[1], "y": heights[0], "y2": heights[1], "value": plain(value)}
