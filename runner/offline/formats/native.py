"""Episodes as `runner` records them: each row is an episode or a chunk of one.

Ray Data and other tools drop the metadata of a table. The layout is then inferred from the column types, if each env
step holds a number, a string or a list of these. Values with more dimensions are stored as bytes, which only the
metadata describes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runner.episodes.columns import REWARDS, ColumnBlock
from runner.offline.codecs.episode_format import (
    KEYS,
    file_columns,
    is_episodes,
    present_columns,
    read_layout,
    rows_by_module,
    table_to_block,
)
from runner.offline.codecs.layout import RESERVED_NAMES, Layout, Leaf, Spaces
from runner.offline.codecs.step_columns import is_list
from runner.offline.codecs.table_format import nest_columns
from runner.offline.codecs.trajectories import ReadCounts
from runner.offline.files.data_error import DataError, DataLocation, data_error, first_line
from runner.offline.files.input_files import PARQUET
from runner.offline.files.parquet_reader import ParquetReader
from runner.offline.formats.raw_data import RawData, common_layout
from runner.offline.formats.recorded_format import RecordedFormat, Row, completed
from runner.offline.formats.selection import Selection

_MODULE_ID = "module_id"


def are_columns_of_episodes(schema: pa.Schema) -> bool:
    """Return whether the columns have the names of recorded episodes and rewards are lists."""
    return {*KEYS, REWARDS} <= set(schema.names) and is_list(schema.field(REWARDS).type)


def infer_layout(table: pa.Table, place: DataLocation) -> Layout:
    """Infer the layout of episodes from the types of their columns, without spaces and environment name.

    Args:
        table: the first episodes, with the columns of `episode_format`.
        place: location of the first episode, for messages.

    Raises:
        DataError: the content of a column cannot be inferred.
    """
    leaves = {
        name: _leaf_of(table[name], place.of(name))
        for name in table.column_names
        if name not in RESERVED_NAMES and is_list(table[name].type)
    }
    module_ids = table[_MODULE_ID].to_pylist() if _MODULE_ID in table.column_names else []
    return Layout(nest_columns(leaves), module_id=next(iter(module_ids), None))


def _leaf_of(column: pa.ChunkedArray, place: DataLocation) -> Leaf:
    shape: tuple[int, ...] = ()
    values = pc.list_flatten(column)
    if is_list(values.type):
        sizes = pc.list_value_length(values)
        if not len(sizes) or pc.count_distinct(sizes).as_py() > 1:
            what = "the first episodes do not show the shape of a row"
            raise data_error(what, place, expected="lists of equal length")
        values, shape = pc.list_flatten(values), (sizes[0].as_py(),)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return Leaf(np.dtype("U1"), shape, str(place.column))
    try:
        return Leaf(np.dtype(values.type.to_pandas_dtype()), shape, str(place.column))
    except (TypeError, NotImplementedError):
        what = f"a column of {values.type} can only be decoded with the metadata of the files, which is missing"
        fix = "read the folder with offline.input_read_method=auto, or leave out this column"
        raise data_error(what, place, fix=fix) from None


@dataclass(frozen=True)
class EpisodeFormat(RecordedFormat):
    """Episodes of `runner`, with the layout from the files' metadata or, without it, inferred from the columns."""

    name = "episodes"
    kinds = (PARQUET,)
    row = Row.EPISODE

    @classmethod
    def recognises(cls, data: RawData) -> bool:
        return data.all_files_are("episodes", lambda one: is_episodes(one) or are_columns_of_episodes(one))

    @classmethod
    def open(cls, data: RawData, selection: Selection, spaces: Spaces) -> Self:
        inferred = (
            None if all(map(is_episodes, data.schemas)) else infer_layout(data.first_rows, DataLocation(data.where))
        )

        def read(schema: pa.Schema) -> Layout | None:
            return read_layout(schema) if is_episodes(schema) else inferred

        layout = common_layout(data, selection, read, KEYS)
        assert layout is not None
        return cls(selection, completed(spaces, layout.spaces), layout.env_name, layout)

    def decode(self, table: pa.Table, place: DataLocation, counts: ReadCounts) -> list[ColumnBlock]:
        assert self.layout is not None
        return list(decode_by_module(table, self.layout, place, counts))

    def file_columns(self, schema: pa.Schema) -> list[str] | None:
        assert self.layout is not None
        return file_columns(self.layout, schema, self.selection.with_infos)

    def sizes(self, reader: ParquetReader) -> Mapping[str, int]:
        tables = [table for table, _ in reader.tables(["eps_id", "length"])]
        ids = {identity for table in tables for identity in pc.unique(table["eps_id"]).to_pylist()}
        return {"num_episodes": len(ids), "num_steps": sum(pc.sum(table["length"]).as_py() for table in tables)}


def decode_episodes(table: pa.Table, layout: Layout, place: DataLocation, counts: ReadCounts) -> ColumnBlock:
    """Decode the episodes in a table, except for episodes recorded before their first step.

    Args:
        table: rows in the episode format.
        layout: layout of the columns, some of which may be missing from the table.
        place: location of the first row, for messages.
        counts: updated with the number of episodes left out.

    Raises:
        DataError: the rows are damaged, or a reward is not finite.
    """
    try:
        is_empty = pc.equal(table["length"], 0)
        if pc.any(is_empty).as_py():
            counts.trajectories_dropped += pc.sum(is_empty).as_py()
            table = table.filter(pc.invert(is_empty))
        block = table_to_block(table, present_columns(layout, table.column_names))
    except (ValueError, pa.ArrowException) as error:
        raise data_error(f"the episodes are damaged: {first_line(error)}", place) from None
    rewards = block.columns.get(REWARDS)
    if isinstance(rewards, np.ndarray) and rewards.dtype.kind == "f" and not np.isfinite(rewards).all():
        raise _not_finite(block, rewards, place)
    return block


def decode_by_module(table: pa.Table, layout: Layout, place: DataLocation, counts: ReadCounts) -> Iterator[ColumnBlock]:
    """Yield the episodes in a table, one block per acting module. See `decode_episodes`."""
    for module_id, rows in rows_by_module(table):
        block = decode_episodes(rows, layout, place, counts)
        yield block if module_id is None else replace(block, module_id=module_id)


def _not_finite(block: ColumnBlock, rewards: Any, place: DataLocation) -> DataError:
    """Return the error for the first reward that is NaN or infinite."""
    row = int(np.flatnonzero(~np.isfinite(rewards).reshape(len(rewards), -1).all(axis=1))[0])
    chunk = int(np.searchsorted(block.offsets, row, side="right")) - 1
    step = row - int(block.offsets[chunk]) + int(block.t_started[chunk])
    what = f"a reward is not finite in episode {block.episode_ids[chunk]}, step {step}"
    return data_error(what, place.at(chunk).of(REWARDS), got=str(rewards[row]))
