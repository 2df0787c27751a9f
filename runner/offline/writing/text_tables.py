"""Tables as text: JSON lines and CSV. Numbers are written losslessly; lists become JSON lists."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from runner.offline.codecs.arrow_columns import values_from_arrow
from runner.offline.codecs.layout import Layout, Leaf, rows_per_chunk
from runner.offline.codecs.table_format import METADATA_KEY, new_obs_column


def write_json_rows(table: pa.Table, file: BinaryIO) -> None:
    """Write one JSON object per row, without the columns that are null in it. The first column must not have nulls."""
    pieces: list[pa.Array] = []
    for index, name in enumerate(table.column_names):
        texts = _as_json(table, name)
        head = ("{" if index == 0 else ",") + json.dumps(name) + ":"
        pieces.append(pc.fill_null(pc.binary_join_element_wise(head, texts, ""), ""))
    rows = pc.binary_join_element_wise(*pieces, "}\n", "")
    file.write("".join(rows.to_pylist()).encode())


def write_csv_rows(table: pa.Table, file: BinaryIO, options: Mapping[str, Any]) -> None:
    """Write one line per row, without columns that are empty in all rows, except for infos."""
    is_empty = {name: bool(table.num_rows) and table[name].null_count == table.num_rows for name in table.column_names}
    kept = [name for name, empty in is_empty.items() if not empty or name.endswith("infos")]
    pa.csv.write_csv(lists_as_text(table.select(kept)), file, pa.csv.WriteOptions(**options))


def lists_as_text(table: pa.Table) -> pa.Table:
    """Return the table with lists and images as JSON text, and numbers as doubles.

    Raises:
        TypeError: a column has bytes that are not numbers.
    """
    arrays = []
    for name in table.column_names:
        type_ = table.schema.field(name).type
        if pa.types.is_nested(type_) or pa.types.is_fixed_size_binary(type_):
            arrays.append(_as_json(table, name))
        elif pa.types.is_floating(type_):
            arrays.append(table[name].cast(pa.float64()))
        elif pa.types.is_binary(type_):
            raise _no_text(name)
        else:
            arrays.append(table[name])
    return pa.table(arrays, table.column_names)


def _as_json(table: pa.Table, name: str) -> pa.Array:
    """Return the column as JSON text per row; nulls stay null. Images, stored as bytes, become nested lists."""
    column = table[name].combine_chunks()
    type_ = column.type
    if pa.types.is_string(type_):
        return _quoted(column)
    if pa.types.is_fixed_size_list(type_) and not pa.types.is_string(type_.value_type):
        return _lists(_number_texts(column.flatten()), (type_.list_size,))
    if pa.types.is_fixed_size_list(type_):
        return _lists(_quoted(column.flatten()), (type_.list_size,))
    if pa.types.is_fixed_size_binary(type_):
        leaf = _leaf_of(table, name)
        if leaf is None or leaf.dtype.kind not in "biuf":
            raise _no_text(name)
        return _lists(_number_texts(pa.array(values_from_arrow(column, leaf).reshape(-1))), leaf.shape)
    if pa.types.is_binary(type_) or pa.types.is_null(type_):
        if column.null_count == len(column):
            return pa.nulls(len(column), pa.string())
        raise _no_text(name)
    return _number_texts(column)


def _number_texts(values: pa.Array) -> pa.Array:
    """Return numbers and bools as JSON; values that are not finite get Python's names."""
    if not pa.types.is_floating(values.type):
        return values.cast(pa.string())
    texts = values.cast(pa.float64()).cast(pa.string())
    if pc.all(pc.is_finite(values)).as_py() is False:
        for ours, json_name in (("nan", "NaN"), ("-nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
            texts = pc.if_else(pc.equal(texts, ours), json_name, texts)
    return texts


def _quoted(texts: pa.Array) -> pa.Array:
    encoded = texts.dictionary_encode()
    known = pa.array(
        [None if text is None else json.dumps(text) for text in encoded.dictionary.to_pylist()], pa.string()
    )
    return known.take(encoded.indices)


def _lists(texts: pa.Array, shape: Sequence[int]) -> pa.Array:
    """Join items to nested JSON lists, innermost first, one list of `shape` per row."""
    for size in reversed(shape):
        offsets = pa.array(range(0, len(texts) + 1, size), pa.int32())
        joined = pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ",")
        texts = pc.binary_join_element_wise("[", joined, "]", "")
    return texts


def _no_text(name: str) -> TypeError:
    return TypeError(f"{name}: bytes, complex numbers and arrays of text cannot be written as text")


def _leaf_of(table: pa.Table, name: str) -> Leaf | None:
    content = (table.schema.metadata or {}).get(METADATA_KEY)
    if content is None:
        return None
    layout = Layout.from_json(content)
    for column in layout.columns:
        for leaf in layout.selected({column}).leaves():
            if leaf.column == name or (rows_per_chunk(column) and new_obs_column(leaf) == name):
                return leaf
    return None
