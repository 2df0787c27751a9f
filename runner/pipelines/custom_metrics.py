"""What connectors, callbacks and operators report: each metric one number, over calls, runners and learners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import add
from typing import Any, SupportsFloat

import numpy as np
import numpy.typing as npt

from runner.config.declared_metrics import Reports, is_percentile
from runner.config.errors import Problem, RunFailure, nearest_match

# How two reduced values become one, the earlier one first; other reductions keep all values.
_JOIN: Mapping[str, Callable[[float, float], float]] = {
    "mean": add,
    "sum": add,
    "min": min,
    "max": max,
    "last": lambda _, later: later,
}


def reduce_numbers(numbers: Sequence[float] | npt.NDArray[np.float64], reduction: str) -> float:
    """Return the number that several become by a percentile, `p1` to `p99`, or a function of numpy."""
    if is_percentile(reduction):
        return float(np.percentile(numbers, int(reduction[1:])))
    return float(getattr(np, reduction)(numbers))


@dataclass
class ReducedValue:
    """The values of one metric so far, reduced.

    Attributes:
        reduction: of `runner.config.declared_metrics.REDUCTIONS`, or a percentile.
        value: the weighted sum of the values of a mean; the sum, the smallest, the largest or the newest value.
        weight: the sum of the weights; 0 as long as nothing is reported.
        values: all values of a median or a percentile, each once; empty for other reductions.
    """

    reduction: str
    value: float = 0.0
    weight: float = 0.0
    values: list[float] = field(default_factory=list)

    def add(self, value: float, weight: float) -> None:
        """Count one value; a mean counts it `weight` times, and one of weight 0 is not counted at all."""
        if weight > 0.0:
            self._count(value * weight if self.reduction == "mean" else value, weight, [value])

    def merge(self, later: ReducedValue) -> None:
        """Count all values that another place has reduced, which come after the values here."""
        if later.weight > 0.0:
            self._count(later.value, later.weight, later.values)

    def _count(self, value: float, weight: float, values: Iterable[float]) -> None:
        join = _JOIN.get(self.reduction)
        if join is None:
            self.values.extend(values)
        else:
            self.value = value if self.weight == 0.0 else join(self.value, value)
        self.weight += weight

    @property
    def result(self) -> float | None:
        """The metric; None if nothing was reported."""
        if self.weight == 0.0:
            return None
        if self.reduction not in _JOIN:
            return reduce_numbers(self.values, self.reduction)
        return self.value / self.weight if self.reduction == "mean" else self.value


# Full name of a metric of the run -> what was reported for it; travels between processes.
ReducedMetrics = dict[str, ReducedValue]


class CustomMetrics:
    """What a connector, a callback or an operator has as `metrics`: takes values of the metrics that it declares.

    Args:
        owner: its class name.
        where: its place in the configuration, for messages.
        reports: what it declares.
        reduced: name -> where values are reduced, for all owners in that place.
        prefix: of the names in `reduced`.
    """

    def __init__(
        self, owner: str, where: str, reports: Reports, reduced: Mapping[str, ReducedValue], prefix: str = ""
    ) -> None:
        self._owner = owner
        self._where = where
        self._reports = reports
        self._reduced = reduced
        self._prefix = prefix

    def report(self, name: str, value: SupportsFloat, weight: SupportsFloat = 1.0) -> None:
        """Report a value of a declared metric.

        Args:
            name: key of `reports`.
            value: a number, array of one number, or tensor of one number.
            weight: how often a mean counts the value: number of the rows that it is a mean of. Other reductions count
                it once; 0 leaves it out of all.

        Raises:
            RunFailure: the name is not declared, or the value is no number.
        """
        if name not in self._reports:
            raise self._undeclared(name)
        try:
            self._reduced[self._prefix + name].add(float(value), float(weight))
        except (TypeError, ValueError):
            what = f"{self._owner} reports {name}, which is no number"
            raise RunFailure(Problem(what, self._where, repr(value), "one number")) from None

    def _undeclared(self, name: str) -> RunFailure:
        declared = list(self._reports)
        return RunFailure(
            Problem(
                f"{self._owner} reports {name}, which it does not declare",
                where=self._where,
                got=str(name),
                expected=f"a name in {self._owner}.reports: {', '.join(declared) or 'it is empty'}",
                nearest=nearest_match(str(name), declared),
            )
        )


def merge_metrics(metrics: ReducedMetrics, later: Mapping[str, ReducedValue]) -> None:
    """Count into `metrics` what another call, runner or learner has reported, whose values come after."""
    for name, reduced in later.items():
        metrics.setdefault(name, ReducedValue(reduced.reduction)).merge(reduced)


def merged_metrics(parts: Iterable[Mapping[str, ReducedValue]]) -> ReducedMetrics:
    """Return what several runners or learners have reported, in their order, as one."""
    merged: ReducedMetrics = {}
    for part in parts:
        merge_metrics(merged, part)
    return merged


def metrics_to_state(metrics: ReducedMetrics) -> dict[str, Any]:
    """Return what was reported as nested dicts of plain values."""
    return {name: asdict(reduced) for name, reduced in metrics.items()}


def metrics_from_state(state: Mapping[str, Any]) -> ReducedMetrics:
    """Invert `metrics_to_state`."""
    return {name: ReducedValue(**reduced) for name, reduced in state.items()}
