"""JSON lines on their way to pyarrow: each line must be an object, for its parser takes more than it can bear.

pyarrow 25 ends the process at a file of `null`, reads a `null` among objects as a row without values, and overflows the
stack on deeply nested lists.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from runner.offline.files.data_error import DataError, DataLocation, data_error

_NEWLINE, _OBJECT = ord("\n"), ord("{")
_BOM = b"\xef\xbb\xbf"
_MAX_DEPTH = 1000
_SHOWN = 80
# +1 where a list or an object opens, -1 where one closes.
_DEPTH_STEP = np.zeros(256, np.int8)
_DEPTH_STEP[list(b"[{")] = 1
_DEPTH_STEP[list(b"]}")] = -1


class CheckedLines:
    """A stream of bytes that looks at each line that passes.

    Args:
        stream: an open file.
        place: the file, for messages.

    Raises:
        DataError: in `read`: a line that is no JSON object, or no UTF-8 text; with its number.
    """

    def __init__(self, stream: Any, place: DataLocation) -> None:
        self._stream, self._place = stream, place
        self._tail = b""  # of the line that is not complete
        self._num_lines = 0

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, as they are."""
        data: bytes = self._stream.read(size)
        held = self._tail + data
        if self._num_lines == 0:
            held = held.removeprefix(_BOM)  # a mark of Unicode may precede the first line
        end = held.rfind(b"\n") + 1 if data else len(held)
        if end:
            self._check(held[:end])
        self._tail = held[end:]
        return data

    def _check(self, lines: bytes) -> None:
        values = np.frombuffer(lines, np.uint8)
        ends = np.flatnonzero(values == _NEWLINE)
        starts = np.concatenate(([0], ends + 1))
        starts = starts[starts < len(values)]
        for line in np.flatnonzero(values[starts] != _OBJECT).tolist():
            text = lines[starts[line] :].partition(b"\n")[0].strip()
            if text and not text.startswith(b"{"):
                raise self._refusal("a line of a JSON file is an object, {...}", line, text)
        if not lines.isascii():
            self._check_text(lines)
        long = np.flatnonzero(np.diff(np.append(starts, len(values))) > _MAX_DEPTH)
        for line in long.tolist():
            line_bytes = values[starts[line] :][: len(lines[starts[line] :].partition(b"\n")[0])]
            if np.cumsum(_DEPTH_STEP[line_bytes], dtype=np.int32).max() > _MAX_DEPTH:
                raise self._refusal(f"a line nests deeper than {_MAX_DEPTH} levels", line, line_bytes.tobytes())
        self._num_lines += len(ends)

    def _check_text(self, lines: bytes) -> None:
        try:
            lines.decode()
        except UnicodeDecodeError as error:
            line = lines.count(b"\n", 0, error.start)
            raise self._refusal("a line of a JSON file is no UTF-8 text", line, lines.split(b"\n")[line]) from None

    def _refusal(self, what: str, line: int, text: bytes) -> DataError:
        return data_error(what, self._place.at(self._num_lines + line), got=_shown(text))


def find_damaged_line(stream: Any, place: DataLocation) -> DataError | None:
    """Return the first line that Python reads no object from; None if there is none. For messages: it takes its
    time."""
    number = 0
    held = b""
    while data := stream.read(2**20):
        *lines, held = (held + data).split(b"\n")
        for line in lines:
            if (error := _damage(line, place.at(number), "")) is not None:
                return error
            number += 1
    return _damage(held, place.at(number), "; the file is truncated")


def _damage(line: bytes, place: DataLocation, hint: str) -> DataError | None:
    text = line.strip().removeprefix(_BOM)
    if not text:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return data_error(f"a line is no JSON: {error!s:.200}{hint}", place, got=_shown(text))
    if isinstance(value, dict):
        return None
    return data_error("a line of a JSON file is an object, {...}", place, got=_shown(text))


def _shown(text: bytes) -> str:
    shown = text.decode("utf-8", "backslashreplace")
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
