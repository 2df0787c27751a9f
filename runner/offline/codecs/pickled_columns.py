"""A pickled array a row, as a column: see `numpy_unpickler`, which reads one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from runner.episodes import nested
from runner.episodes.nested import Array
from runner.offline.codecs.numpy_unpickler import PickleMachine, PickleRefused

_MAX_FRAMES = 16


def unpickle_rows(blobs: Sequence[bytes]) -> Any:
    """Return one pickle a row as a column: an array (rows, ...) or, for dicts and tuples, nested arrays.

    Pickles of arrays of one shape differ in their data bytes only; the first one shows where these are, and for all
    that agree with it elsewhere they are cut out at once.

    Raises:
        PickleRefused: as in `unpickle`, or the rows do not fit together; `row` is the first such row.
    """
    if not blobs:
        raise ValueError("no pickles to read")
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
    """Read the first row that is left and all others with the same frame; return the rows left after that."""
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
        raise _refusal(f"{_outline(value)}, but row 0 is {out.dtype} of shape {out.shape[1:]}", row)
    out[row] = value


def _stack_rows(values: list[Any]) -> Any:
    try:
        return nested.stack(values)
    except (TypeError, ValueError) as error:
        outlines = [_outline(value) for value in values]
        row = next((i for i, outline in enumerate(outlines) if outline != outlines[0]), 0)
        raise _refusal(f"{error}: {outlines[row]}, but row 0 is {outlines[0]}", row) from None


def _in_row(row: int, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except PickleRefused as error:
        error.row = row
        raise


def _refusal(message: str, row: int) -> PickleRefused:
    error = PickleRefused(message)
    error.row = row
    return error


def _outline(value: Any) -> str:
    if isinstance(value, (np.ndarray, np.generic)):
        return f"{value.dtype} of shape {value.shape}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_outline(item)}" for key, item in value.items()) + "}"
    return type(value).__name__
