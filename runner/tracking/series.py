"""Metrics over a run: columns of a growing progress.jsonl, their axis, thinning, and a common grid for seeds."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.config.documents import open_regular
from runner.tracking.headline import ENV_STEPS, ITERATION
from runner.tracking.plain_values import finite_number
from runner.tracking.progress_log import parse_line

Column = NDArray[np.float64]

_NAN = float("nan")


class GrowingColumns:
    """Metrics of a run during training.

    Args:
        file: progress.jsonl, which may not exist yet.
        names: metrics to keep, or None for all.

    Attributes:
        newest: last value of each metric that is not null, including metrics that are not kept.
    """

    def __init__(self, file: Path, names: Iterable[str] | None = None) -> None:
        self._file = file
        self._names = None if names is None else tuple(dict.fromkeys(names))
        self._forget()

    def _forget(self) -> None:
        self._end = 0  # bytes read so far
        self._last_line = b""
        self._num_lines = 0
        self._columns: dict[str, array[float]] = {}
        self.newest: dict[str, Any] = {}

    def read(self) -> dict[str, Column]:
        """Read the lines appended since the last call, or all lines if the file was replaced.

        Returns:
            Metrics by name, float64 [num_iterations], with NaN for missing, null and invalid values. Metrics without a
            number are left out. Empty if the file does not exist.

        Raises:
            OSError: the file cannot be read.
        """
        try:
            file = open_regular(self._file)
        except FileNotFoundError:
            self._forget()
            return {}
        with file:
            # If a resumed run has deleted lines, the last line is no longer at its old position.
            file.seek(self._end - len(self._last_line))
            if file.read(len(self._last_line)) != self._last_line:
                self._forget()
                file.seek(0)
            for line in file:
                if not line.endswith(b"\n"):  # still incomplete
                    break
                self._end, self._last_line = self._end + len(line), line
                self._add(line)
        columns = {name: np.array(self._padded(name)) for name in self._columns}
        return {name: column for name, column in columns.items() if np.isfinite(column).any()}

    def _add(self, line: bytes) -> None:
        metrics = parse_line(line)
        if metrics is None:
            return
        self.newest |= {name: value for name, value in metrics.items() if value is not None}
        for name in metrics if self._names is None else self._names:
            number = finite_number(metrics.get(name))
            self._padded(name).append(_NAN if number is None else number)
        self._num_lines += 1

    def _padded(self, name: str) -> array[float]:
        """Return the numbers of a metric, padded with NaN to the number of lines."""
        column = self._columns.setdefault(name, array("d"))
        column.extend([_NAN] * (self._num_lines - len(column)))
        return column


PROGRESS_FILE = "progress.jsonl"
_AXES: Mapping[str, str] = {
    ENV_STEPS: "env steps",
    "num_env_steps_trained_lifetime": "rows trained on",
    ITERATION: "iteration",
}


def read_columns(run_dir: Path, names: Iterable[str] | None = None) -> dict[str, Column]:
    """Return the metrics of a run by name, float64 [num_iterations]; NaN for missing, null and invalid values.

    Args:
        run_dir: folder of the run; without progress.jsonl there are no columns.
        names: metrics to return in addition to the axes, or None for all with at least one number.
    """
    return follow_columns(run_dir, names).read()


def follow_columns(run_dir: Path, names: Iterable[str] | None = None) -> GrowingColumns:
    """Return the columns of `read_columns` as an object that can be read again while the file grows."""
    return GrowingColumns(run_dir / PROGRESS_FILE, None if names is None else [*_AXES, *names])


# `follow_columns`, or a function that returns the same object for the same arguments.
Follow = Callable[[Path, tuple[str, ...]], GrowingColumns]


def choose_axis(columns: Mapping[str, Column]) -> str:
    """Return the metric for the x-axis: env steps if they are counted."""
    for name in _AXES:
        column = columns.get(name)
        if column is not None and np.nanmax(column) > 0:
            return name
    return ITERATION


def axis_title(name: str) -> str:
    """Return the title of the axis."""
    return _AXES[name]


def axis_of(columns: Mapping[str, Column], name: str) -> Column:
    """Return the non-decreasing values of the axis; line numbers if the metric does not exist."""
    length = len(next(iter(columns.values()), ()))
    column = columns.get(name, np.arange(1.0, length + 1))
    rising: Column = np.maximum.accumulate(np.nan_to_num(column, nan=0.0))
    return rising


def thin(columns: Sequence[Column], num_points: int) -> list[Column]:
    """Return at most `num_points` points, each the mean of neighbouring values; NaN if all of them are."""
    length = len(columns[0])
    if length <= num_points:
        return list(columns)
    starts = np.linspace(0, length, num_points, endpoint=False).astype(np.int64)
    return [_means(column, starts) for column in columns]


def _means(column: Column, starts: NDArray[np.int64]) -> Column:
    is_known = np.isfinite(column)
    num = np.add.reduceat(is_known.astype(np.int64), starts)
    total = np.add.reduceat(np.where(is_known, column, 0.0), starts)
    means = np.full(len(starts), np.nan)
    np.divide(total, num, out=means, where=num > 0)
    return means


def on_common_grid(lines: Sequence[tuple[Column, Column]], num_points: int) -> tuple[Column, Column]:
    """Interpolate several lines on a common grid; return the grid [num_points] and the values [num_lines, num_points].

    A line is interpolated between its points and extended by one step beyond its ends, because seeds rarely end at the
    same step. Further out it is NaN.

    Args:
        lines: x (non-decreasing) and y of each line; at least one line has a point.
        num_points: points of the grid. Only one is used if all x are equal.
    """
    known = [(x[np.isfinite(y)], y[np.isfinite(y)]) for x, y in lines]
    starts, ends = [x[0] for x, _ in known if len(x)], [x[-1] for x, _ in known if len(x)]
    grid = np.unique(np.linspace(min(starts), max(ends), num_points))
    values = np.full((len(lines), len(grid)), np.nan)
    for row, (x, y) in zip(values, known, strict=True):
        if len(x):
            step = float(np.median(np.diff(x))) if len(x) > 1 else 0.0
            is_near = (grid >= x[0] - step) & (grid <= x[-1] + step)
            row[is_near] = np.interp(grid[is_near], x, y)
    return grid, values


def plain(value: float) -> float | None:
    """Return the number for JSON with six digits, and NaN as null."""
    number = finite_number(float(value))
    return None if number is None else float(f"{number:.6g}")


def last_values(columns: Mapping[str, Column]) -> dict[str, float]:
    """Return the newest number of each metric."""
    return {name: float(column[np.isfinite(column)][-1]) for name, column in columns.items()}
