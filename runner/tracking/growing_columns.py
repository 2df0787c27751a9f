"""Metrics of a progress.jsonl that grows: each reading goes on where the last one ended."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.config.documents import open_regular
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
