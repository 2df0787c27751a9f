"""Causes of a loss that is not finite: values of the batch that are not finite, or implausibly large.

Dimension letters: B rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.config.errors import Problem, RunFailure

# The squares and products of larger values overflow in single precision.
_LARGEST = 1e10


class LossNotFinite(RunFailure):
    """A loss, or a metric reported with it, is not finite; the parameters are unusable."""


@dataclass(frozen=True)
class _Extreme:
    """The most extreme value of a column, and the number of values out of range."""

    name: str
    value: float
    row: int
    count: int

    @property
    def order(self) -> tuple[bool, float]:
        """Sort key, greater for worse extremes; values that are not finite come first."""
        return not np.isfinite(self.value), abs(self.value)


def with_batch(failure: LossNotFinite, columns: Mapping[str, Any], place: Callable[[str, int], str]) -> LossNotFinite:
    """Add the extremes of the batch in front of the message of a failure.

    Args:
        failure: failure of the loss.
        columns: name -> (B, ...) arrays or tensors, nested like the space.
        place: (column, row) -> source of the value.
    """
    extremes = sorted(_extremes(columns), key=lambda extreme: extreme.order, reverse=True)
    worst = [extreme for extreme in extremes if extreme.count]
    lines = [
        f"the batch contains {extreme.name} = {extreme.value:g} "
        f"({place(extreme.name.partition('[')[0], extreme.row)}); "
        f"{extreme.count} {'value' if extreme.count == 1 else 'values'} of {extreme.name.partition('[')[0]} not finite "
        f"or beyond {_LARGEST:g}"
        for extreme in worst
    ]
    if not worst and extremes:
        largest = ", ".join(f"{extreme.name} = {extreme.value:g}" for extreme in extremes[:3])
        lines = [f"all values of the batch are finite; the largest: {largest}"]
    problem = failure.problem
    expected = problem.expected
    if worst:
        expected = f"values between -{_LARGEST:g} and {_LARGEST:g} in the batch; {expected}"
    return LossNotFinite(replace(problem, got="\n".join(filter(None, [*lines, problem.got])), expected=expected))


def with_advice(failure: LossNotFinite, advice: str) -> LossNotFinite:
    """Add advice to the message of a failure."""
    problem: Problem = failure.problem
    return LossNotFinite(replace(problem, fix="\n".join(filter(None, [problem.fix, advice]))))


def _extremes(columns: Mapping[str, Any]) -> Iterator[_Extreme]:
    for name, column in columns.items():
        for leaf_name, leaf in _float_leaves(name, column):
            if not leaf.size:
                continue
            size = np.abs(leaf.astype(np.float64))
            size[np.isnan(size)] = np.inf
            place = [int(index) for index in np.unravel_index(int(size.argmax()), leaf.shape)]
            index = f"[{', '.join(map(str, place[1:]))}]" if place[1:] else ""
            count = int((size > _LARGEST).sum())
            yield _Extreme(leaf_name + index, float(leaf[tuple(place)]), place[0], count)


def _float_leaves(name: str, column: Any) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    parts: Sequence[tuple[Any, Any]] = ()
    if isinstance(column, Mapping):
        parts = list(column.items())
    elif isinstance(column, tuple):
        parts = list(enumerate(column))
    else:
        array = np.asarray(column.detach().cpu() if hasattr(column, "detach") else column)
        if array.dtype.kind == "f":
            yield name, array
    for key, part in parts:
        yield from _float_leaves(f"{name}[{key!r}]", part)
