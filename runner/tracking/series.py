"""Metrics over a run: columns of a growing progress.jsonl, their axis, fewer points, several seeds on one grid."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
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
    """The metrics of a run while it trains.

    Args:
        file: progress.jsonl, which may not be there yet.
        names: metrics to keep; None: all.

    Attributes:
        newest: the last value of each metric that is not null, also of metrics that are not kept.
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
        """Read what has been appended since the last time; all of it where the file is another one by now.

        Returns:
            Metrics by name, float64 [num_iterations]; NaN where one is missing, null or no number. A metric that never
            was a number is left out. Without a file there are none.

        Raises:
            OSError: the file cannot be read.
        """
        try:
            file = open_regular(self._file)
        except FileNotFoundError:
            self._forget()
            return {}
        with file:
            # A run that is resumed drops lines: then the last line is not where it was.
            file.seek(self._end - len(self._last_line))
            if file.read(len(self._last_line)) != self._last_line:
                self._forget()
                file.seek(0)
            for line in file:
                if not line.endswith(b"\n"):  # not yet whole
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
        """Return the numbers of a metric, as many as there are lines."""
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
    """Return metrics of a run by name, float64 [num_iterations]; NaN where one is missing, null or no number.

    Args:
        run_dir: of the run; without progress.jsonl there are no columns.
        names: only these, and the axes; None: all that are a number at least once.
    """
    return follow_columns(run_dir, names).read()


def follow_columns(run_dir: Path, names: Iterable[str] | None = None) -> GrowingColumns:
    """Return what `read_columns` reads, to be read again while it grows."""
    return GrowingColumns(run_dir / PROGRESS_FILE, None if names is None else [*_AXES, *names])


def choose_axis(columns: Mapping[str, Column]) -> str:
    """Return the metric that the others are drawn over: env steps where they are counted."""
    for name in _AXES:
        column = columns.get(name)
        if column is not None and np.nanmax(column) > 0:
            return name
    return ITERATION


def axis_title(name: str) -> str:
    """Return what stands below the axis."""
    return _AXES[name]


def axis_of(columns: Mapping[str, Column], name: str) -> Column:
    """Return the axis, never falling; the numbers of the lines where there is no such metric."""
    length = len(next(iter(columns.values()), ()))
    column = columns.get(name, np.arange(1.0, length + 1))
    rising: Column = np.maximum.accumulate(np.nan_to_num(column, nan=0.0))
    return rising


def thin(columns: Sequence[Column], num_points: int) -> list[Column]:
    """Return at most `num_points` points: means of as many neighbours as it takes; NaN where all of them are."""
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
    """Put several lines on one grid; return the grid [num_points], the values [num_lines, num_points].

    A line is interpolated between its own points, and holds for one step of its own beyond its ends, since seeds never
    end on the very same step. Further out it is NaN.

    Args:
        lines: x, which never falls, and y of each; at least one has a point.
        num_points: of the grid; of a single place there is one.
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
    """Return the number for JSON: NaN as null, with six digits, more than a screen shows."""
    number = finite_number(float(value))
    return None if number is None else float(f"{number:.6g}")


def last_values(columns: Mapping[str, Column]) -> dict[str, float]:
    """Return the newest number of each metric."""
    return {name: float(column[np.isfinite(column)][-1]) for name, column in columns.items()}
