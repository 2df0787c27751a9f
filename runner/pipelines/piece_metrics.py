"""What pieces and callbacks report while they run: each metric one number, over calls, runners and learners."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, SupportsFloat

from runner.config.errors import Problem, RunFailure, nearest_match
from runner.config.piece_reports import Reports


@dataclass
class ReducedValue:
    """The values of one metric so far, reduced.

    Attributes:
        reduction: `mean`, `sum`, `max` or `last`.
        value: the weighted sum of the values of a mean; the sum, the largest or the newest value.
        weight: the sum of the weights; 0 as long as nothing is reported.
    """

    reduction: str
    value: float = 0.0
    weight: float = 0.0

    def add(self, value: float, weight: float) -> None:
        """Count one value; a mean counts it `weight` times, and one of weight 0 is not counted at all."""
        if weight > 0.0:
            self._count(value * weight if self.reduction == "mean" else value, weight)

    def merge(self, later: ReducedValue) -> None:
        """Count all values that another place has reduced, which come after the values here."""
        if later.weight > 0.0:
            self._count(later.value, later.weight)

    def _count(self, value: float, weight: float) -> None:
        if self.reduction in ("mean", "sum"):
            self.value += value
        elif self.reduction == "last" or self.weight == 0.0 or value > self.value:
            self.value = value
        self.weight += weight

    @property
    def result(self) -> float | None:
        """The metric; None if nothing was reported."""
        if self.weight == 0.0:
            return None
        return self.value / self.weight if self.reduction == "mean" else self.value


# Full name of a metric of the run -> what was reported for it; travels between processes.
ConnectorMetrics = dict[str, ReducedValue]


class PieceMetrics:
    """What a piece or a callback gets as `metrics`: takes the values of the metrics that it declares in `reports`.

    Args:
        owner: its class name.
        where: its place in the configuration, for messages.
        reports: what it declares.
        reduced: name -> where values are reduced, for all owners in that place.
    """

    def __init__(self, owner: str, where: str, reports: Reports, reduced: Mapping[str, ReducedValue]) -> None:
        self._owner = owner
        self._where = where
        self._reports = reports
        self._reduced = reduced

    def report(self, name: str, value: SupportsFloat, weight: SupportsFloat = 1.0) -> None:
        """Report a value of a declared metric.

        Args:
            name: key of `reports`.
            value: a number, array of one number, or tensor of one number.
            weight: how often a mean counts the value: number of the rows that it is a mean of; 0 leaves it out.

        Raises:
            RunFailure: the name is not declared, or the value is no number.
        """
        if name not in self._reports:
            raise self._undeclared(name)
        try:
            self._reduced[name].add(float(value), float(weight))
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
                allowed=f"a name in {self._owner}.reports: {', '.join(declared) or 'it is empty'}",
                nearest=nearest_match(str(name), declared),
            )
        )


def merge_metrics(metrics: ConnectorMetrics, later: Mapping[str, ReducedValue]) -> None:
    """Count into `metrics` what another call, runner or learner has reported, whose values come after."""
    for name, reduced in later.items():
        metrics.setdefault(name, ReducedValue(reduced.reduction)).merge(reduced)


def merged_metrics(parts: Iterable[Mapping[str, ReducedValue]]) -> ConnectorMetrics:
    """Return what several runners or learners have reported, in their order, as one."""
    merged: ConnectorMetrics = {}
    for part in parts:
        merge_metrics(merged, part)
    return merged


def metrics_to_state(metrics: ConnectorMetrics) -> dict[str, Any]:
    """Return what was reported as nested dicts of plain values."""
    return {name: asdict(reduced) for name, reduced in metrics.items()}


def metrics_from_state(state: Mapping[str, Any]) -> ConnectorMetrics:
    """Invert `metrics_to_state`."""
    return {name: ReducedValue(**reduced) for name, reduced in state.items()}
