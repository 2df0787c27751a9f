"""Arrays as Arrow arrays and back, without a copy where Arrow allows it.

A row of rank 0 is a value, of rank 1 a fixed-size list, of higher rank its bytes (Parquet reads bytes 25 times as fast
as lists); text is text, complex numbers are bytes. Rows without numbers have no column at all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from runner.episodes.nested import Array
from runner.offline.codecs.layout import Leaf


def value_type(leaf: Leaf) -> pa.DataType | None:
    """Return the Arrow type of one row; None where a row holds nothing."""
    if leaf.num_bytes == 0 and not leaf.is_text:
        return None
    if leaf.size == 0:
        return None
    if leaf.dtype.kind == "U":
        return _in_list(pa.string(), leaf)
    if leaf.dtype.kind == "S":
        return _in_list(pa.binary(), leaf)
    if leaf.dtype.kind == "c" or len(leaf.shape) > 1:
        return pa.binary(leaf.num_bytes)
    return _in_list(pa.from_numpy_dtype(leaf.dtype), leaf)


def _in_list(type_: pa.DataType, leaf: Leaf) -> pa.DataType:
    return type_ if not leaf.shape else pa.list_(not_null("item", type_), leaf.size)


def not_null(name: str, type_: pa.DataType) -> pa.Field:
    """Return a field without nulls."""
    return pa.field(name, type_, nullable=False)


def values_to_arrow(array: Array, leaf: Leaf) -> pa.Array:
    """Return the rows (rows, ...) of a leaf as an Arrow array of `value_type(leaf)`."""
    type_ = value_type(leaf)
    if type_ is None:
        raise ValueError(f"{leaf.column}: rows of shape {leaf.shape} have no values")
    rows = len(array)
    array = np.ascontiguousarray(array.astype(leaf.dtype, copy=False))
    if pa.types.is_fixed_size_binary(type_):
        return pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(array.reshape(-1).view(np.uint8))])
    flat = array.reshape(-1)
    if pa.types.is_fixed_size_list(type_):
        values = pa.array(flat.tolist() if leaf.is_text else flat, type_.value_type)
        return pa.FixedSizeListArray.from_arrays(values, type=type_)
    return pa.array(flat.tolist() if leaf.is_text else flat, type_)


def values_from_arrow(values: pa.Array, leaf: Leaf) -> Array:
    """Invert `values_to_arrow`; the array is read-only where it is a view of Arrow's memory.

    Raises:
        ValueError: the array has another type than the leaf says, or nulls.
    """
    expected = value_type(leaf)
    if values.type != expected:
        values = _cast_names(values, expected, leaf)
    rows = len(values)
    if pa.types.is_fixed_size_list(values.type):
        values = values.flatten()
    if values.null_count:
        raise ValueError(f"{leaf.column} has {values.null_count} empty values")
    if pa.types.is_fixed_size_binary(values.type):
        buffer = values.buffers()[1]
        start = values.offset * leaf.num_bytes
        flat = np.frombuffer(buffer, np.uint8, rows * leaf.num_bytes, start).view(leaf.dtype)
    elif leaf.is_text:
        flat = _widened(np.array(values.to_pylist() or [leaf.dtype.type()], leaf.dtype.kind)[: len(values)], leaf)
    else:
        flat = values.to_numpy(zero_copy_only=False)
    return flat.reshape(rows, *leaf.shape)


def _widened(flat: Array, leaf: Leaf) -> Array:
    return flat.astype(leaf.dtype) if flat.dtype.itemsize <= leaf.dtype.itemsize else flat


def _cast_names(values: pa.Array, expected: pa.DataType | None, leaf: Leaf) -> pa.Array:
    """Return whether types are equal; lists may differ in the name of their items and in whether these can be null."""
    try:
        if expected is not None and _value_kind(values.type) == _value_kind(expected):
            return values.cast(expected)
    except pa.ArrowInvalid:
        pass
    raise ValueError(f"{leaf.column} holds {values.type}, expected {expected}")


def _value_kind(type_: pa.DataType) -> Any:
    return type_.value_type if isinstance(type_, (pa.FixedSizeListType, pa.ListType, pa.LargeListType)) else type_


def concat_arrays(parts: list[Array], leaf: Leaf) -> Array:
    """Return all rows; the only part as it is."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty((0, *leaf.shape), leaf.dtype)
