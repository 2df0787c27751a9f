"""The metrics of a run: `progress.jsonl`, written line by line and read while it grows, and `result.json`."""

from __future__ import annotations

import json
import os
import shutil
from array import array
from collections.abc import Iterable, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.config.documents import open_regular, parse_json
from runner.tracking.plain_values import finite_number, json_value


def write_result(path: str | os.PathLike[str], result: Mapping[str, Any]) -> None:
    """Write `result` as JSON: a reader sees the old file or the new one, never a part. Raises OSError."""
    write_atomically(Path(path), (json.dumps(json_value(result), indent=2) + "\n").encode())


def write_atomically(path: Path, content: bytes) -> None:
    """Write a temporary file in the same folder, fsync, rename, fsync the folder; the file's mode and links stay."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _fsync_folder(path.parent)


def _fsync_folder(folder: Path) -> None:
    with suppress(OSError):  # folders cannot be opened on Windows
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


ITERATION_KEY = "training_iteration"


class ProgressLog:
    """Appends lines to `path`; each is with the operating system when `append` returns: SIGKILL loses none.

    The first `append` creates the file and its folder. Raises OSError where the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file: FileIO | None = None

    def append(self, metrics: Mapping[str, Any]) -> None:
        """Write one line, all of it or nothing. NaN and infinity become null, numpy scalars numbers."""
        line = json.dumps({name: json_value(value) for name, value in metrics.items()}, separators=(",", ":"))
        file = self._file or self._open()
        end = file.seek(0, os.SEEK_END)
        try:
            _write_all(file, f"{line}\n".encode())
        except OSError:  # a full disk may have taken a part
            file.truncate(end)
            raise

    def read(self) -> list[dict[str, Any]]:
        """Return all whole lines, oldest first; [] without a file. What a crash left half-written is skipped."""
        return [record for _, record in self._whole_lines()]

    def truncate_after(self, iteration: int) -> int:
        """Drop lines with a `training_iteration` above `iteration`, and half-written ones; how many it were.

        For a resume from a checkpoint that is older than the last line. The file is replaced at once or not
        at all.
        """
        self.close()
        if not self.path.exists():
            return 0
        content = self.path.read_bytes()
        kept = [line for line, record in self._whole_lines() if record.get(ITERATION_KEY, 0) <= iteration]
        kept_content = b"".join(line + b"\n" for line in kept)
        if kept_content != content:
            write_atomically(self.path, kept_content)
        return len(content.splitlines()) - len(kept)

    def close(self) -> None:
        """Close the file; a later `append` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> FileIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        ends_in_half_line = self.path.exists() and self.path.read_bytes()[-1:] not in (b"", b"\n")
        self._file = self.path.open("ab", buffering=0)
        if ends_in_half_line:
            _write_all(self._file, b"\n")
        return self._file

    def _whole_lines(self) -> list[tuple[bytes, dict[str, Any]]]:
        if not self.path.exists():
            return []
        lines = []
        *whole, _half = self.path.read_bytes().split(b"\n")
        for line in whole:
            record = parse_line(line)
            if record is not None:
                lines.append((line, record))
        return lines


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the metrics of a line; None where it is none, as what a crash left half-written."""
    try:
        record = parse_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _write_all(file: FileIO, content: bytes) -> None:
    """Write it, also where the operating system takes it in parts."""
    while content:
        content = content[file.write(content) :]


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
