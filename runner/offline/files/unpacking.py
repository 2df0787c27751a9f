"""How much compressed data may unpack to: a file of a few megabytes can hold more than the memory has.

Up to `FREE_BYTES` is always allowed, beyond that `offline.input_max_unpacked_ratio` bytes for each packed byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from runner.config.offline import OfflineConfig
from runner.offline.files.data_error import DataError, DataLocation, data_error

FREE_BYTES = 2**26
_OPTION = "input_max_unpacked_ratio"
_ratio = OfflineConfig().input_max_unpacked_ratio


def allow(ratio: float) -> None:
    """Set the ratio for all that this process reads from now on, by the data that it has opened last."""
    global _ratio
    _ratio = ratio


def most_bytes(packed: int) -> int:
    """Return what so many bytes may unpack to."""
    return FREE_BYTES + int(_ratio * packed)


def check_size(unpacked: int, packed: int, place: DataLocation) -> None:
    """Raise `DataError` if `packed` bytes unpack, or claim to unpack, to too many."""
    if unpacked > most_bytes(packed):
        raise too_large(packed, place)


def too_large(packed: int, place: DataLocation) -> DataError:
    """Return the error for packed bytes that unpack to too many."""
    what = f"{packed:,} packed bytes hold more than {most_bytes(packed):,}: not unpacked"
    return data_error(what, place, allowed=f"a ratio of {_ratio:g}; offline.{_OPTION}=RATIO raises it")


def check_rows(rows: Iterable[Any], packed: int, place: DataLocation) -> Iterator[Any]:
    """Yield the rows of texts or arrays as they come, until they have too many bytes; raises `DataError`."""
    total = 0
    for row in rows:
        total += len(row) * getattr(row, "itemsize", 1)
        check_size(total, packed, place)
        yield row


class BoundedStream:
    """A stream that unpacks what it reads, and ends with an error where that gets too much.

    Args:
        stream: an open file.
        packed: bytes of the file.
        place: the file, for messages.

    Raises:
        DataError: in `read`.
    """

    closed = False

    def __init__(self, stream: Any, packed: int, place: DataLocation) -> None:
        self._stream, self._packed, self._place = stream, packed, place
        self._num_read = 0

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        data: bytes = self._stream.read(most_bytes(self._packed) + 1 if size is None or size < 0 else size)
        self._num_read += len(data)
        check_size(self._num_read, self._packed, self._place)
        return data

    def readable(self) -> bool:
        """See `io.IOBase`."""
        return True

    def close(self) -> None:
        """Leave the file open: who opened it closes it."""
