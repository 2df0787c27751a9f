"""Metrics of a run: `progress.jsonl`, with one flat JSON object per iteration, and the last one in `result.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from runner.config.documents import parse_json
from runner.durable_files import write_atomically
from runner.tracking.plain_values import json_value


def write_result(path: str | os.PathLike[str], result: Mapping[str, Any]) -> None:
    """Write `result` as JSON. Readers see either the old or the new file. Raises OSError."""
    write_atomically(Path(path), (json.dumps(json_value(result), indent=2) + "\n").encode())


def read_result(path: Path) -> dict[str, Any]:
    """Read a file of `write_result`; empty if it is missing, or was cut by a crash."""
    try:
        return dict(parse_json(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}


ITERATION_KEY = "training_iteration"


class ProgressLog:
    """Appends lines to `path`, each of which survives a SIGKILL once `append` has returned.

    The first `append` creates the file and its folder. Raises OSError if the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file: FileIO | None = None

    def append(self, metrics: Mapping[str, Any]) -> None:
        """Write one line completely or not at all. NaN and infinity become null, numpy scalars become numbers."""
        line = json.dumps({name: json_value(value) for name, value in metrics.items()}, separators=(",", ":"))
        file = self._file or self._open()
        end = file.seek(0, os.SEEK_END)
        try:
            _write_all(file, f"{line}\n".encode())
        except OSError:  # a full disk may have stored a part of the line
            file.truncate(end)
            raise

    def read(self) -> list[dict[str, Any]]:
        """Return all complete lines, oldest first; [] without a file. Lines cut by a crash are skipped."""
        return [record for _, record in self._complete_lines()]

    def truncate_after(self, iteration: int) -> int:
        """Delete lines after `iteration` and incomplete ones. Return the number of deleted lines.

        Used to resume from a checkpoint that is older than the last line. The file is replaced atomically.
        """
        self.close()
        if not self.path.exists():
            return 0
        content = self.path.read_bytes()
        kept = [line for line, record in self._complete_lines() if record.get(ITERATION_KEY, 0) <= iteration]
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

    def _complete_lines(self) -> list[tuple[bytes, dict[str, Any]]]:
        if not self.path.exists():
            return []
        *complete, _partial = self.path.read_bytes().split(b"\n")
        return [(line, record) for line in complete if (record := parse_line(line)) is not None]


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the metrics of a line, or None if it is invalid, for example cut by a crash."""
    try:
        record = parse_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _write_all(file: FileIO, content: bytes) -> None:
    """Write all bytes, even if the operating system accepts them in parts."""
    while content:
        content = content[file.write(content) :]
