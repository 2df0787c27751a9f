"""Metrics reported by connectors, callbacks and operators, reduced to one number over calls, runners and learners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import add
from typing import Any, SupportsFloat

import numpy as np
import numpy.typing as npt

from runner.config.declared_metrics import Reports, is_percentile
from runner.config.errors import Problem, RunFailure, nearest_match

# How two reduced values are combined, the earlier one first; other reductions keep all values.
_JOIN: Mapping[str, Callable[[float, float], float]] = {
    "mean": add,
    "sum": add,
    "min": min,
    "max": max,
    "last": lambda _, later: later,
}


def reduce_numbers(numbers: Sequence[float] | npt.NDArray[np.float64], reduction: str) -> float:
    """Reduce numbers to one by a percentile, `p1` to `p99`, or a numpy function."""
    if is_percentile(reduction):
        return float(np.percentile(numbers, int(reduction[1:])))
    return float(getattr(np, reduction)(numbers))


@dataclass
class ReducedValue:
    """The reduced values of one metric so far.

    Attributes:
        reduction: one of `runner.config.declared_metrics.REDUCTIONS`, or a percentile.
        value: weighted sum of the values for a mean; otherwise the sum, minimum, maximum or newest value.
        weight: sum of the weights; 0 if nothing was reported.
        values: all values for a median or percentile, each once; otherwise empty.
    """

    reduction: str
    value: float = 0.0
    weight: float = 0.0
    values: list[float] = field(default_factory=list)

    def add(self, value: float, weight: float) -> None:
        """Count one value; a mean counts it `weight` times, and a value of weight 0 is ignored."""
        if weight > 0.0:
            self._count(value * weight if self.reduction == "mean" else value, weight, [value])

    def merge(self, later: ReducedValue) -> None:
        """Count later values that were reduced elsewhere."""
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
        """The metric, or None if nothing was reported."""
        if self.weight == 0.0:
            return None
        if self.reduction not in _JOIN:
            return reduce_numbers(self.values, self.reduction)
        return self.value / self.weight if self.reduction == "mean" else self.value


# Full name of a metric of the run -> its reported values; sent between processes.
ReducedMetrics = dict[str, ReducedValue]


class CustomMetrics:
    """The `metrics` object of a connector, callback or operator: accepts values of its declared metrics.

    Args:
        owner: class name of the object that reports.
        where: its location in the configuration, for messages.
        reports: its declared metrics.
        reduced: name -> reduced values, shared by all owners with that location.
        prefix: prefix of the names in `reduced`.
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
            value: a number, or an array or tensor with one number.
            weight: how often a mean counts the value, usually the number of rows it was averaged over. Other reductions
                count it once; all reductions ignore values of weight 0.

        Raises:
            RunFailure: the name is not declared, or the value is not a number.
        """
        if name not in self._reports:
            raise self._undeclared(name)
        try:
            self._reduced[self._prefix + name].add(float(value), float(weight))
        except (TypeError, ValueError):
            what = f"{self._owner} reports {name} with a value that is not a number"
            raise RunFailure(Problem(what, self._where, repr(value), "one number")) from None

    def _undeclared(self, name: str) -> RunFailure:
        declared = list(self._reports)
        return RunFailure(
            Problem(
                f"{self._owner} reports {name}, which its `reports` does not declare",
                where=self._where,
                got=str(name),
                expected=", ".join(declared) or f"a metric declared in {self._owner}.reports, which is empty",
                nearest=nearest_match(str(name), declared),
            )
        )


def merge_metrics(metrics: ReducedMetrics, later: Mapping[str, ReducedValue]) -> None:
    """Add the later values of another call, runner or learner to `metrics`."""
    for name, reduced in later.items():
        metrics.setdefault(name, ReducedValue(reduced.reduction)).merge(reduced)


def merged_metrics(parts: Iterable[Mapping[str, ReducedValue]]) -> ReducedMetrics:
    """Merge the reported values of several runners or learners, in order."""
    merged: ReducedMetrics = {}
    for part in parts:
        merge_metrics(merged, part)
    return merged


def metrics_to_state(metrics: ReducedMetrics) -> dict[str, Any]:
    """Return reported values as nested dicts of plain values."""
    return {name: asdict(reduced) for name, reduced in metrics.items()}


def metrics_from_state(state: Mapping[str, Any]) -> ReducedMetrics:
    """Invert `metrics_to_state`."""
    return {name: ReducedValue(**reduced) for name, reduced in state.items()}
