"""Segments: parts of a state that change rarely, so checkpoints write them only once.

A state may contain a `Segment` instead of values. The first checkpoint writes its values to a separate file. Later
checkpoints link to this file as long as the state contains a segment with the same `SegmentFile`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.config.errors import RunFailure

Values = Mapping[str, Any]
_NUM_AHEAD = 4
_LARGE = 2**20  # bytes from which reading a file in a thread pays off


@dataclass
class SegmentFile:
    """The file of values that never change; empty until a checkpoint has written them.

    Attributes:
        path: the file in the newest checkpoint that contains it.
        num_bytes: size of the file.
        digest: SHA-256 of the file, hexadecimal.
        read: returns the values, or raises `CheckpointError` if the file is missing, truncated or altered.
    """

    path: Path | None = None
    num_bytes: int = 0
    digest: str = ""
    read: Callable[[], Values] | None = None

    def is_there(self) -> bool:
        """Return whether the file exists in its full length; its content is only checked on reading."""
        try:
            return self.path is not None and self.path.stat().st_size == self.num_bytes
        except OSError:
            return False

    def take_over(self, other: SegmentFile) -> None:
        """Use the location of another file with the same values."""
        self.path, self.num_bytes, self.digest, self.read = other.path, other.num_bytes, other.digest, other.read


class Segment:
    """Values of a state that a checkpoint stores in a separate file.

    Args:
        file: location of the values.
        read: returns nested dicts and tuples of arrays and plain values, or None to read them from the file.
    """

    def __init__(self, file: SegmentFile, read: Callable[[], Values] | None = None) -> None:
        self.file = file
        self._read = read

    def values(self) -> Values:
        """Return the values.

        Raises:
            CheckpointError: the file with the values is missing, truncated or altered.
        """
        read = self._read or self.file.read
        if read is None:
            raise ValueError("a segment needs values or a file")
        return read()

    def keep(self) -> None:
        """Keep the values in memory, because their source is about to change; do nothing if the file is damaged."""
        with suppress(RunFailure):
            values = self.values()
            self._read = lambda: values


def read_ahead(segments: Iterable[Segment]) -> Iterator[Values]:
    """Yield the values of segments in order; the next few large segments are read and checked in the background."""
    with ThreadPoolExecutor(_NUM_AHEAD) as pool:
        waiting: deque[Callable[[], Values]] = deque()
        for segment in segments:
            is_large = segment.file.num_bytes >= _LARGE
            waiting.append(pool.submit(segment.values).result if is_large else segment.values)
            if len(waiting) > _NUM_AHEAD:
                yield waiting.popleft()()
        while waiting:
            yield waiting.popleft()()


def find_segments(state: Any) -> Iterator[Segment]:
    """Yield the segments in a state."""
    if isinstance(state, Segment):
        yield state
    elif isinstance(state, (Mapping, list, tuple)):
        for part in state.values() if isinstance(state, Mapping) else state:
            yield from find_segments(part)
