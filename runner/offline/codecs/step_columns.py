"""Convert columns of steps in tables of other tools to arrays: any Arrow type with rows of equal shape.

Supported are numbers, bools and text; lists of any depth and size; tensors of pyarrow and Ray Data; structs, which
become dicts; and text that is a JSON list, as in CSV files.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from runner.episodes import nested
from runner.episodes.columns import Column
from runner.episodes.nested import Array
from runner.offline.codecs.numpy_unpickler import unpickle
from runner.offline.files.data_error import DataLocation, data_error

_TRUE, _FALSE = ("true", "1", "1.0"), ("false", "0", "0.0")


def read_end_flags(values: Array, place: DataLocation) -> npt.NDArray[np.bool_]:
    """Return values of any dtype as bools (R,); `place` is the location of the first one.

    Raises:
        DataError: a value is neither true nor false. Python would treat all non-empty text as true.
    """
    if values.dtype.kind == "b":
        return np.asarray(values, np.bool_)
    if values.dtype.kind in "iuf":
        is_true, is_false = values == 1, values == 0
    else:
        texts = np.char.lower(np.char.strip(_as_text(values)))
        is_true, is_false = np.isin(texts, _TRUE), np.isin(texts, _FALSE)
    wrong = np.flatnonzero(~(is_true | is_false))
    if len(wrong):
        row = int(wrong[0])
        raise data_error(
            "an end flag must be true or false", place.at(row), got=str(values[row]), expected="true, false, 0, 1"
        )
    return np.asarray(is_true, np.bool_)


def _as_text(values: Array) -> Array:
    return np.char.decode(values, "latin-1") if values.dtype.kind == "S" else values.astype(np.str_)


_RAY_TENSORS = ("ray.data.arrow_tensor", "ray.data.arrow_tensor_v2")
_EXTENSION_NAME, _EXTENSION_METADATA = b"ARROW:extension:name", b"ARROW:extension:metadata"


def column_to_arrays(column: pa.ChunkedArray | pa.Array, field: pa.Field, place: DataLocation) -> Column:
    """Return a column as an array (rows, ...), or nested arrays for structs; read-only if it is a view.

    Args:
        column: one column of a table.
        field: its field, whose metadata may mark it as tensors.
        place: file and first row, for messages.

    Raises:
        DataError: values are missing, rows differ in shape, or the type is not numbers, bools or text.
    """
    shape = _tensor_shape(column.type, field, place)
    values = _to_arrays(_one_array(column), place)
    if shape is None or not isinstance(values, np.ndarray):
        return values
    if len(values) and values[0].size != math.prod(shape):
        raise data_error(f"a tensor column does not hold shape {shape} in every row", place)
    return values.reshape(len(values), *shape)


def is_list(type_: pa.DataType) -> bool:
    """Return whether a type is a list, of variable or fixed size."""
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_))


def _one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return all rows as one array, with extension types as their storage type."""
    if not isinstance(column, pa.ChunkedArray):
        return column.storage if isinstance(column, pa.ExtensionArray) else column
    if isinstance(column.type, pa.BaseExtensionType):  # pyarrow cannot concatenate all of its extension types
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    array = column.combine_chunks()
    # More than 2 GiB of text remain in several chunks.
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array


def _tensor_shape(type_: pa.DataType, field: pa.Field, place: DataLocation) -> tuple[int, ...] | None:
    """Return the shape of a row of a tensor column. Without Ray, pyarrow does not know Ray's type."""
    if isinstance(type_, pa.FixedShapeTensorType):
        return tuple(type_.shape)
    if getattr(type_, "extension_name", None) in _RAY_TENSORS:
        return tuple(int(size) for size in type_.shape)
    metadata = field.metadata or {}
    if metadata.get(_EXTENSION_NAME, b"").decode("latin1") not in _RAY_TENSORS:
        return None
    shape = metadata.get(_EXTENSION_METADATA, b"")
    try:  # files of Ray 2.49 to 2.54 hold a pickled tuple
        sizes = tuple(unpickle(shape) if shape[:1] == b"\x80" else json.loads(shape))
    except (TypeError, ValueError, RecursionError) as error:
        raise data_error(f"the shape of a tensor column cannot be read: {error}", place) from None
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise data_error("the shape of a tensor column cannot be read", place, got=repr(sizes)[:80])
    return sizes


def _to_arrays(array: pa.Array, place: DataLocation) -> Column:
    array = _decoded(array)
    type_ = array.type
    if array.null_count:
        row = pc.index(pc.is_null(array), True).as_py()
        raise data_error("a value is missing", place.at(row))
    if pa.types.is_struct(type_):
        return _struct_to_arrays(array, place)
    if is_list(type_):
        return _lists_to_array(array, place)
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return _text_to_array(array, place)
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return np.array(array.to_pylist() or [b""], np.bytes_)[: len(array)]
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_) or pa.types.is_floating(type_):
        values: Array = array.to_numpy(zero_copy_only=False)
        return values
    if pa.types.is_decimal(type_):
        return _to_arrays(array.cast(pa.float64()), place)
    raise data_error(f"values of type {type_} are not supported", place, expected="numbers, bools, text, lists")


def _decoded(array: pa.Array) -> pa.Array:
    """Return the values converted from special storage, such as dictionaries and views, to a plain type."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    type_ = array.type
    if pa.types.is_dictionary(type_):
        return _decoded(array.dictionary_decode())
    if pa.types.is_run_end_encoded(type_):
        return _decoded(pc.run_end_decode(array))
    if pa.types.is_string_view(type_):
        return array.cast(pa.string())
    if pa.types.is_binary_view(type_):
        return array.cast(pa.binary())
    is_view = pa.types.is_list_view(type_) or pa.types.is_large_list_view(type_)
    if is_view and not array.null_count:  # casting them in pyarrow 25 miscounts the last list
        offsets = np.concatenate(([0], np.cumsum(array.sizes.to_numpy(), dtype=np.int64)))
        return pa.LargeListArray.from_arrays(offsets, array.flatten())
    return array


def _struct_to_arrays(array: pa.Array, place: DataLocation) -> Column:
    type_ = array.type
    names = [type_.field(index).name for index in range(type_.num_fields)]
    if not names or len(set(names)) < len(names):
        what = "a struct does not have fields" if not names else "fields of a struct have the same name"
        raise data_error(what, place, got=str(type_))
    parts = {
        name: _to_arrays(part, place.of(f"{place.column}.{name}"))
        for name, part in zip(names, array.flatten(), strict=True)
    }
    # Ray's tensors with a variable shape
    return _ray_tensors(parts["data"], parts["shape"], place) if names == ["data", "shape"] else parts


def _ray_tensors(data: Column, shapes: Column, place: DataLocation) -> Column:
    """Return the tensors of data and shapes. A struct that only has these field names is returned unchanged."""
    are_arrays = isinstance(data, np.ndarray) and isinstance(shapes, np.ndarray)
    if not are_arrays or data.ndim != 2 or shapes.ndim != 2 or shapes.dtype.kind not in "iu" or not len(shapes):
        return {"data": data, "shape": shapes}
    if not (shapes == shapes[0]).all():
        row = int(np.flatnonzero((shapes != shapes[0]).any(axis=1))[0])
        raise _unequal(shapes[0].tolist(), shapes[row].tolist(), place.at(row))
    shape = shapes[0].tolist()
    if min(shape, default=1) < 0 or math.prod(shape) != data.shape[1]:
        what = f"a tensor of shape {shape} has {data.shape[1]} values"
        raise data_error(what, place.at(0), expected=f"{math.prod(shape)} values")
    return data.reshape(len(data), *shape)


def _lists_to_array(array: pa.Array, place: DataLocation) -> Column:
    rows = len(array)
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
    else:
        sizes = pc.list_value_length(array).to_numpy(zero_copy_only=False)
        size = int(sizes[0]) if rows else 0
        if rows and (sizes != size).any():
            row = int(np.flatnonzero(sizes != size)[0])
            raise _unequal([size], [int(sizes[row])], place.at(row))
    of_items = replace(place, items_per_row=place.items_per_row * size)
    values = _to_arrays(array.flatten(), of_items) if size else np.zeros(0)
    if isinstance(values, dict):
        return nested.map_leaves(lambda leaf: leaf.reshape(rows, size, *leaf.shape[1:]), values)
    return values.reshape(rows, size, *values.shape[1:])


def _text_to_array(array: pa.Array, place: DataLocation) -> Column:
    numbers = _flat_lists(array)
    if numbers is not None:
        return numbers
    texts = array.to_pylist()
    if not texts or not texts[0].startswith("["):
        return np.array(texts or [""], np.str_)[: len(texts)]
    try:
        rows = json.loads(f"[{','.join(texts)}]")
    except ValueError:
        row = next((i for i, text in enumerate(texts) if not _is_json(text)), 0)
        raise data_error("expected a list of numbers", place.at(row), got=texts[row][:80]) from None
    try:
        values = np.array(rows)
    except ValueError:
        shapes = [np.shape(row) if _is_regular(row) else None for row in rows]
        row = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), 0)
        raise _unequal(shapes[0], shapes[row], place.at(row)) from None
    if values.dtype.kind not in "biufU" or len(values) != len(texts):
        raise data_error("expected a list of numbers", place, got=texts[0][:80])
    return values


def _flat_lists(texts: pa.Array) -> Array | None:
    """Parse strings that are lists of K numbers to (rows, K), ten times as fast as JSON; None for other strings."""
    if not len(texts) or not texts[0].as_py().startswith("["):
        return None
    if not all(pc.all(pc.equal(pc.count_substring(texts, bracket), 1)).as_py() for bracket in "[]"):
        return None
    items = pc.split_pattern(pc.utf8_trim(texts, " []"), ",")
    sizes = pc.min_max(pc.list_value_length(items)).as_py()
    if sizes["min"] != sizes["max"]:
        return None
    words = pc.ascii_trim_whitespace(items.flatten())
    is_integer = words[0].as_py().lstrip("-").isdigit()  # a failing cast is slow
    for type_ in (*([pa.int64()] if is_integer else []), pa.float64()):
        with suppress(pa.ArrowInvalid):
            values: Array = words.cast(type_).to_numpy(zero_copy_only=False)
            return values.reshape(len(texts), sizes["min"])
    return None


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), list)
    except ValueError:
        return False


def _is_regular(row: Any) -> bool:
    try:
        np.shape(row)
    except ValueError:
        return False
    return True


def _unequal(first: Any, other: Any, place: DataLocation) -> Exception:
    what = "rows of a column must have the same shape"
    if first is None:
        return data_error(what, place, got="a list of lists of different lengths")
    return data_error(what, place, got=f"shape {_show(other)}", expected=f"{_show(first)}, like the first row")


def _show(shape: Any) -> str:
    return "irregular" if shape is None else str(list(shape))
