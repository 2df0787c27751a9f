"""Tables as text: JSON lines and CSV. Numbers are written losslessly; lists become JSON lists."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv

from runner.offline.codecs.arrow_columns import values_from_arrow
from runner.offline.codecs.layout import Leaf, rows_per_chunk
from runner.offline.codecs.table_format import new_obs_column, read_steps_layout

# Columns that are empty in all rows with a single agent.
_OF_AGENTS = ("agent_id", "module_id", "multi_agent_episode_id")


def write_json_rows(table: pa.Table, file: BinaryIO) -> None:
    """Write one JSON object per row, without the columns that are null in it."""
    columns = [_values(table, name) for name in table.column_names]
    for row in zip(*columns, strict=True):
        known = {name: value for name, value in zip(table.column_names, row, strict=True) if value is not None}
        file.write(_json(known).encode() + b"\n")


def write_csv_rows(table: pa.Table, file: BinaryIO, options: Mapping[str, Any]) -> None:
    """Write one line per row, without the columns of agents if there is a single agent.

    Other columns are also written if they are empty, because later rows of the file may have values.
    """
    empty = {name for name in table.column_names if table[name].null_count == table.num_rows}
    kept = [name for name in table.column_names if name not in empty or name not in _OF_AGENTS]
    pa.csv.write_csv(lists_as_text(table.select(kept)), file, pa.csv.WriteOptions(**options))


def lists_as_text(table: pa.Table) -> pa.Table:
    """Return the table with lists and images as JSON text, and numbers as doubles.

    Raises:
        TypeError: a column has bytes that are not numbers.
    """
    arrays = []
    for field in table.schema:
        column = table[field.name]
        if pa.types.is_floating(field.type):
            column = column.cast(pa.float64())
        elif pa.types.is_nested(field.type) or _is_bytes(field.type):
            texts = [None if value is None else _json(value) for value in _values(table, field.name)]
            column = pa.array(texts, pa.string())
        arrays.append(column)
    return pa.table(arrays, table.column_names)


def _values(table: pa.Table, name: str) -> list[Any]:
    """Return the rows as plain values. Images, which are stored as bytes, become nested lists."""
    if not _is_bytes(table.schema.field(name).type) or table[name].null_count == table.num_rows:
        return list(table[name].to_pylist())
    leaf = _leaf_of(table, name)
    if leaf is None or leaf.dtype.kind not in "biuf":
        raise TypeError(f"{name}: bytes, complex numbers and arrays of text cannot be written as text")
    return list(values_from_arrow(table[name].combine_chunks(), leaf).tolist())


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_))


def _json(value: Any) -> str:
    """Return JSON; numbers that are not finite get the names that Python reads: NaN, Infinity."""
    return json.dumps(value, separators=(",", ":"), default=float)  # float16


def _leaf_of(table: pa.Table, name: str) -> Leaf | None:
    layout = read_steps_layout(table.schema)
    if layout is None:
        return None
    for column in layout.columns:
        for leaf in layout.selected({column}).leaves():
            if leaf.column == name or (rows_per_chunk(column) and new_obs_column(leaf) == name):
                return leaf
    return None
