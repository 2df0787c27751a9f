"""Unpack columns of RLlib's tables to arrays.

RLlib writes one row per step. Columns in `output_compress_columns` (`obs` and `new_obs`) hold each array, or nested
arrays, as base64 text of an LZ4 frame of a pickle.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from runner.episodes import nested
from runner.episodes.nested import Array
from runner.offline.codecs.numpy_unpickler import PickleMachine, PickleRefused, unpickle
from runner.offline.files.data_error import DataLocation, data_error, import_extra
from runner.offline.files.input_files import check_size, most_bytes, too_large

_MAX_FRAMES = 16


def unpickle_rows(blobs: Sequence[bytes]) -> Any:
    """Decode one pickle per row to a column: an array (rows, ...) or, for dicts and tuples, nested arrays.

    Pickles of arrays of equal shape only differ in their data bytes. The first one determines their position, and they
    are extracted together from all pickles that are otherwise identical.

    Raises:
        PickleRefused: see `unpickle`; or the rows are inconsistent, with `row` as the first such row.
    """
    if not blobs:
        raise ValueError("there are no pickles to read")
    machine = PickleMachine(blobs[0])
    first = _in_row(0, machine.run)
    if type(first) is not np.ndarray or machine.window is None or first.dtype.kind not in "iufc":
        return _stack_rows([first, *(_in_row(row, PickleMachine(blob).run) for row, blob in enumerate(blobs[1:], 1))])
    out = np.empty((len(blobs), *first.shape), first.dtype)
    sizes = np.array([len(blob) for blob in blobs])
    left = np.arange(len(blobs))
    for _ in range(_MAX_FRAMES):
        if not len(left):
            return out
        left = _cut_rows(blobs, sizes, left, out)
    for row in left.tolist():
        _place_row(_in_row(row, PickleMachine(blobs[row]).run), row, out)
    return out


def _cut_rows(blobs: Sequence[bytes], sizes: Array, left: Array, out: Array) -> Array:
    """Read the first remaining row and all others with the same frame. Return the rows that then remain."""
    head = int(left[0])
    machine = PickleMachine(blobs[head])
    _place_row(_in_row(head, machine.run), head, out)
    window = machine.window
    if window is None or window.start == window.stop:
        return left[1:]
    same = left[sizes[left] == sizes[head]]
    table = np.frombuffer(b"".join([blobs[row] for row in same.tolist()]), np.uint8).reshape(-1, sizes[head])
    frame = (table[:, : window.start], table[:, window.stop :])
    agrees = np.logical_and.reduce([(part == part[0]).all(axis=1) for part in frame])
    data = np.ascontiguousarray(table[agrees, window.start : window.stop])
    out[same[agrees]] = data.view(out.dtype).reshape(-1, *out.shape[1:])
    return np.setdiff1d(left, same[agrees], assume_unique=True)


def _place_row(value: Any, row: int, out: Array) -> None:
    if type(value) is not np.ndarray or value.shape != out.shape[1:] or value.dtype != out.dtype:
        raise _row_error(f"{_outline(value)}, but row 0 is {out.dtype} of shape {out.shape[1:]}", row)
    out[row] = value


def _stack_rows(values: list[Any]) -> Any:
    try:
        return nested.stack(values)
    except (TypeError, ValueError) as error:
        outlines = [_outline(value) for value in values]
        row = next((i for i, outline in enumerate(outlines) if outline != outlines[0]), 0)
        raise _row_error(f"{error}: {outlines[row]}, but row 0 is {outlines[0]}", row) from None


def _in_row(row: int, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except PickleRefused as error:
        error.row = row
        raise


def _row_error(message: str, row: int) -> PickleRefused:
    error = PickleRefused(message)
    error.row = row
    return error


def _outline(value: Any) -> str:
    if isinstance(value, (np.ndarray, np.generic)):
        return f"{value.dtype} of shape {value.shape}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_outline(item)}" for key, item in value.items()) + "}"
    return type(value).__name__


_LZ4_MAGIC = "BCJNG"  # base64 of the first bytes of every LZ4 frame
# Frame: magic (4 bytes), flags, block size, content size (8 bytes), checksum, then blocks with their sizes (4 bytes).
_LZ4_BLOCK_START = 19
_LZ4_HAS_SIZE = 0x08
_LZ4_FLAGS, _LZ4_USUAL = 0xDF, 0x48  # version 1, content size, no checksums, no dictionary


def is_packed(column: pa.ChunkedArray) -> bool:
    """Return whether a column holds packed arrays, judging by its first value."""
    return first_packed(column) is not None


def first_packed(column: pa.ChunkedArray) -> str | None:
    """Return the first value if it is a packed array, else None."""
    if not _is_text(column.type):
        return None
    try:
        first = next((value.as_py() for chunk in column.chunks for value in chunk[:1]), None)
    except UnicodeDecodeError:
        return None
    text = first.decode("latin1") if isinstance(first, bytes) else first
    return text if text is not None and text.startswith(_LZ4_MAGIC) else None


def unpack_column(column: pa.ChunkedArray, place: DataLocation) -> Any:
    """Return the arrays of a packed column: one array (rows, ...), or nested ones.

    Raises:
        DataError: a value is not a packed array, or does not match the others.
    """
    try:
        return unpickle_rows(unpack_bytes(column.to_pylist(), place))
    except PickleRefused as error:
        raise data_error(f"a packed array cannot be read: {error}", place.at(error.row or 0)) from None
    except UnicodeDecodeError as error:
        raise data_error(f"a packed array is damaged: it is not base64 text: {error}", place) from None


def unpack_value(text: str | bytes, place: DataLocation) -> Any:
    """Decode one packed value. Raises `DataError` if it is not an array."""
    try:
        return unpickle(unpack_bytes([text], place)[0])
    except PickleRefused as error:
        raise data_error(f"a packed array cannot be read: {error}", place) from None


def unpack_bytes(texts: Sequence[str | bytes | None], place: DataLocation) -> list[bytes]:
    """Return the pickles in these strings."""
    frame = import_extra("lz4.frame", place, "reading columns that RLlib has packed")
    block = import_extra("lz4.block", place, "reading columns that RLlib has packed")
    blobs: list[bytes] = []
    packed: list[bytes] = []
    for row, text in enumerate(texts):
        try:
            packed.append(binascii.a2b_base64(text or "", strict_mode=True))
        except (binascii.Error, ValueError) as error:
            raise data_error(f"a packed array is damaged: {error}", place.at(row)) from None
    num_packed = sum(map(len, packed))
    claimed = 0
    for row, content in enumerate(packed):  # check all sizes before unpacking
        claimed += _claimed_size(content)
        check_size(claimed, num_packed, place.at(row))
    left = most_bytes(num_packed)
    for row, content in enumerate(packed):
        try:
            blobs.append(_decompress(content, frame, block, left))
            left -= len(blobs[-1])
        except TooMuchError:
            raise too_large(num_packed, place.at(row)) from None
        except ValueError as error:
            raise data_error(f"a packed array is damaged: {error}", place.at(row)) from None
        except (RuntimeError, EOFError, MemoryError, block.LZ4BlockError) as error:
            raise data_error(f"a packed array is damaged: it is not an LZ4 frame: {error}", place.at(row)) from None
    return blobs


class TooMuchError(Exception):
    """A frame exceeds the remaining size limit."""


def _claimed_size(packed: bytes) -> int:
    """Return the content size from the header of an LZ4 frame, or 0 if it is not stored."""
    has_size = len(packed) >= _LZ4_BLOCK_START and packed[4] & _LZ4_HAS_SIZE
    return int.from_bytes(packed[6:14], "little") if has_size else 0


def _decompress(packed: bytes, frame: Any, block: Any, most: int) -> bytes:
    """Return the content of an LZ4 frame of at most `most` bytes.

    The usual frame is a header with the content's size and a single block, which is ten times as fast to read directly.
    """
    size = _claimed_size(packed)
    if size > min(255 * len(packed), most):
        raise ValueError(f"{len(packed)} bytes claim to hold {size}")
    if not size:
        return _decompress_frame(packed, frame, most)
    word = int.from_bytes(packed[15:19], "little")
    end = _LZ4_BLOCK_START + (word & 0x7FFFFFFF)
    is_usual = packed[4] & _LZ4_FLAGS == _LZ4_USUAL and packed[end:] == b"\0\0\0\0"
    if not is_usual or word & 0x80000000 or not size:
        return _decompress_frame(packed, frame, most)
    content: bytes = block.decompress(packed[_LZ4_BLOCK_START:end], uncompressed_size=size)
    if len(content) != size:
        raise ValueError(f"an LZ4 frame of {size} bytes contains {len(content)}")
    return content


def _decompress_frame(packed: bytes, frame: Any, most: int) -> bytes:
    """Return the content of any LZ4 frame."""
    machine = frame.LZ4FrameDecompressor()
    content: bytes = machine.decompress(packed, max_length=most + 1)
    if len(content) > most:
        raise TooMuchError
    if not machine.eof:
        raise RuntimeError("it is truncated")
    return content


def _is_text(type_: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(type_) for test in tests)
