"""Text in blocks of whole lines: pyarrow parses these, and reads nothing through Python from its own threads.

A thread of pyarrow that reads ahead through a Python stream aborts the process at its exit.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

_NEWLINE = ord("\n")


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Utf8Stream:
    """A stream of text in UTF-8.

    Args:
        stream: an open file.
        encoding: of the file.

    Raises:
        UnicodeDecodeError: in `read`: the file has another encoding.
    """

    def __init__(self, stream: _Readable, encoding: str) -> None:
        self._stream = stream
        is_utf8 = codecs.lookup(encoding).name == "utf-8"
        self._decoder = None if is_utf8 else codecs.getincrementaldecoder(encoding)()

    def read(self, size: int) -> bytes:
        """Return about `size` bytes; none at the end."""
        while data := self._stream.read(size):
            if self._decoder is None:
                return data
            if text := self._decoder.decode(data):
                return text.encode()
        return b"" if self._decoder is None else self._decoder.decode(b"", final=True).encode()


def _last_line_end(block: bytes) -> int:
    return block.rfind(b"\n") + 1


def whole_lines(stream: _Readable, size: int, end_of: Callable[[bytes], int] = _last_line_end) -> Iterator[bytes]:
    """Yield blocks of about `size` bytes that end where a line or the stream ends.

    Args:
        stream: of text.
        size: bytes per block.
        end_of: returns where the last complete record of a block ends.
    """
    tail, is_over = b"", False
    while not is_over:
        parts, missing = [tail], size
        while missing > 0 and (data := stream.read(missing)):
            parts.append(data)
            missing -= len(data)
        is_over = missing > 0
        block = b"".join(parts)
        end = len(block) if is_over else end_of(block)
        tail = block[end:]
        if end:
            yield block[:end]


def read_ahead(blocks: Iterator[bytes], number: int) -> Iterator[bytes]:
    """Yield each block when `number` more have been read, so that a file that unpacks to too much fails early."""
    waiting: deque[bytes] = deque()
    for block in blocks:
        waiting.append(block)
        if len(waiting) > number:
            yield waiting.popleft()
    yield from waiting


def record_end(parse: Mapping[str, Any]) -> Callable[[bytes], int]:
    """Return the `end_of` for a CSV file with these options of pyarrow; quoted values may have newlines."""
    quote = parse.get("quote_char", '"')
    if not parse.get("newlines_in_values") or not quote:
        return _last_line_end
    escape = parse.get("escape_char")
    escaped = re.compile(re.escape(escape.encode()) + b".", re.DOTALL) if escape else None

    def find(block: bytes) -> int:
        if escaped is not None:
            block = escaped.sub(b"xx", block)
        values = np.frombuffer(block, np.uint8)
        is_quoted = np.cumsum(values == ord(quote), dtype=np.uint8) & 1
        ends = np.flatnonzero((values == _NEWLINE) & (is_quoted == 0))
        return int(ends[-1]) + 1 if len(ends) else 0

    return find
