"""Convert arrays and infos to Arrow arrays and back, without copies if Arrow allows it.

Each info is one line of JSON. Arrays and numpy scalars are `{"dtype": "<f4", "shape": [2], "array": [0.5, 1.0]}`, with
shape null for a scalar. Tuples are `{"tuple": [...]}` and bytes `{"bytes": base64}`. Dicts with keys other than text,
or with the keys of these forms, are `{"map": [[key, value], ...]}`. Any other object is stored as text.

In array columns, a row of rank 0 is a value and a row of rank 1 a fixed-size list. A row of higher rank is stored as
bytes, which Parquet reads 25 times as fast as lists. Text stays text, and complex numbers are bytes. Rows without
numbers do not get a column.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from runner.episodes import nested
from runner.episodes.columns import Column
from runner.episodes.nested import Array
from runner.offline.codecs.layout import Leaf

_FORMS = ({"dtype", "shape", "array"}, {"tuple"}, {"bytes"}, {"map"})
_EMPTY = "{}"
_MAX_TEXT = 1000


def info_to_json(info: dict[str, Any]) -> str:
    """Return an info as JSON."""
    return json.dumps(_to_plain(info), separators=(",", ":")) if info else _EMPTY


def info_from_json(text: str | None) -> dict[str, Any]:
    """Invert `info_to_json`. Raises `ValueError` if the text is not a JSON object."""
    if not text or text == _EMPTY:
        return {}
    info = _from_plain(json.loads(text))
    if not isinstance(info, dict):
        raise ValueError(f"an info must be a JSON object, got {text[:80]}")
    return info


def _to_plain(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufSU":
        return _array_to_plain(value)
    if isinstance(value, dict):
        if all(type(key) is str for key in value) and set(value) not in _FORMS:
            return {key: _to_plain(item) for key, item in value.items()}
        return {"map": [[_to_plain(key), _to_plain(item)] for key, item in value.items()]}
    if isinstance(value, list):
        return [_to_plain(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_to_plain(item) for item in value]}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    return str(value)[:_MAX_TEXT]


def _array_to_plain(array: Any) -> dict[str, Any]:
    shape = list(array.shape) if isinstance(array, np.ndarray) else None
    items = base64.b64encode(array.tobytes()).decode() if array.dtype.kind == "S" else array.tolist()
    return {"dtype": array.dtype.str, "shape": shape, "array": items}


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    keys = set(value)
    if keys == _FORMS[0]:
        return _array_from_plain(value)
    if keys == {"tuple"}:
        return tuple(_from_plain(item) for item in value["tuple"])
    if keys == {"bytes"}:
        return base64.b64decode(value["bytes"])
    if keys == {"map"}:
        return {_from_plain(key): _from_plain(item) for key, item in value["map"]}
    return {key: _from_plain(item) for key, item in value.items()}


def _array_from_plain(value: dict[str, Any]) -> Any:
    dtype = np.dtype(value["dtype"])
    if dtype.kind not in "biufSU":
        raise ValueError(f"arrays of dtype {dtype} are not allowed in an info")
    shape = value["shape"]
    if dtype.kind == "S":
        array = np.frombuffer(base64.b64decode(value["array"]), dtype)
    else:
        array = np.asarray(value["array"], dtype)
    return array.reshape(() if shape is None else shape)[()] if shape is None else array.reshape(shape).copy()


@dataclass(frozen=True)
class RecordedInfos:
    """Infos of a recorded block, decoded on access. Row e of `texts` holds the infos of chunk e."""

    texts: pa.ChunkedArray | pa.Array  # (E,) list<string>; null if all are empty

    def rows_of(self, chunk: int, num_rows: int) -> list[dict[str, Any]] | None:
        """Return the first `num_rows` infos of the chunk, or None if all are empty."""
        texts: list[str] | None = self.texts[chunk].as_py()
        return None if texts is None else [info_from_json(text) for text in texts[:num_rows]]


def infos_to_arrow(rows: Sequence[list[dict[str, Any]] | None]) -> pa.Array | None:
    """Return the infos of E chunks as list<string> (E,), or None if all are empty."""
    texts = [None if infos is None or not any(infos) else [info_to_json(info) for info in infos] for infos in rows]
    if all(text is None for text in texts):
        return None
    return pa.array(texts, pa.list_(pa.field("item", pa.string(), nullable=False)))


def value_type(leaf: Leaf) -> pa.DataType:
    """Return the Arrow type of one row, which must have values."""
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


def stored_arrays(tree: Any, column: Column) -> list[tuple[Leaf, Array]]:
    """Return the leaves in a tree of a layout that are stored, each with its array in a column."""
    pairs: list[tuple[Leaf, Array]] = []
    nested.map_leaves(lambda leaf, array: pairs.append((leaf, np.asarray(array))), tree, column)
    return [(leaf, array) for leaf, array in pairs if leaf.size]


def values_to_arrow(array: Array, leaf: Leaf) -> pa.Array:
    """Return the rows (rows, ...) of a leaf as an Arrow array of `value_type(leaf)`."""
    type_, rows = value_type(leaf), len(array)
    array = np.ascontiguousarray(array.astype(leaf.dtype, copy=False))
    if pa.types.is_fixed_size_binary(type_):
        return pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(array.reshape(-1).view(np.uint8))])
    flat = array.reshape(-1)
    if pa.types.is_fixed_size_list(type_):
        values = pa.array(flat.tolist() if leaf.is_text else flat, type_.value_type)
        return pa.FixedSizeListArray.from_arrays(values, type=type_)
    return pa.array(flat.tolist() if leaf.is_text else flat, type_)


def values_from_arrow(values: pa.Array, leaf: Leaf) -> Array:
    """Invert `values_to_arrow`. The array is read-only if it is a view of Arrow's memory.

    Raises:
        ValueError: the array contains nulls or does not have the leaf's type.
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


def _cast_names(values: pa.Array, expected: pa.DataType, leaf: Leaf) -> pa.Array:
    """Cast lists that only differ in the name or nullability of their items."""
    try:
        if _value_kind(values.type) == _value_kind(expected):
            return values.cast(expected)
    except pa.ArrowInvalid:
        pass
    raise ValueError(f"{leaf.column} holds {values.type}, expected {expected}")


def _value_kind(type_: pa.DataType) -> Any:
    return type_.value_type if isinstance(type_, (pa.FixedSizeListType, pa.ListType, pa.LargeListType)) else type_


def concat_arrays(parts: list[Array], leaf: Leaf) -> Array:
    """Concatenate all rows. A single part is returned without a copy."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty((0, *leaf.shape), leaf.dtype)
