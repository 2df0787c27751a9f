"""Stop criteria of a run. Imports nothing heavy: `resume` checks them before it loads torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MetCriterion:
    """An entry of `stop` that a result meets: its metric is at or above its bound."""

    metric: str
    value: float
    bound: float

    def __str__(self) -> str:
        return f"{self.metric} {self.value:g} >= {self.bound:g}"

    @property
    def key(self) -> str:
        """The key to override to go on; on the command line a metric has dots."""
        return f"stop.{self.metric.replace('/', '.')}"


def met_criteria(stop: Mapping[str, float], result: Mapping[str, Any]) -> list[MetCriterion]:
    """Return the criteria that a result meets, in the order of `stop`; one is enough to end the run."""
    values = {metric: result.get(metric) for metric in stop}
    return [
        MetCriterion(metric, value, stop[metric])
        for metric, value in values.items()
        if value is not None and value >= stop[metric]
    ]
