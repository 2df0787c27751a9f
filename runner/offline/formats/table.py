"""Tables with one step per row, from `runner`, RLlib or other sources, in Parquet, JSON lines or CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import pyarrow as pa

from runner.config.errors import Problem
from runner.config.recorded_columns import canonical_name
from runner.episodes.columns import OBS, ColumnBlock
from runner.offline.codecs import rllib_tables
from runner.offline.codecs.layout import Layout, Spaces, fit_to_spaces
from runner.offline.codecs.table_format import NEW_OBS, StepRows, read_steps, read_steps_layout
from runner.offline.codecs.table_schema import TableSchema, resolve_schema, schema_of_layout
from runner.offline.codecs.trajectories import ReadCounts, check_new_obs
from runner.offline.codecs.trajectory_assembler import TrajectoryAssembler
from runner.offline.files.data_error import DataError, DataLocation, data_error
from runner.offline.files.input_files import CSV, JSON, PARQUET, InputFiles
from runner.offline.files.parquet_reader import ParquetReader
from runner.offline.files.raw_rows import RawTable
from runner.offline.formats.raw_data import RawData, common_layout
from runner.offline.formats.recorded_format import RecordedFormat, Row, completed
from runner.offline.formats.selection import ALWAYS_READ, Selection

_INFOS = ("infos", "new_infos")


@dataclass(frozen=True)
class TableFormat(RecordedFormat):
    """Tables of steps, which are joined to trajectories.

    Attributes:
        schema: role of each column.
        steps_layout: layout of a table written by `runner`, or None if it is inferred from the columns.
        packed: columns that RLlib may have packed, or None for a table written by `runner`.
        left_out: extra columns that pyarrow cannot read -> reason.
    """

    name = "table"
    kinds = (PARQUET, JSON, CSV)
    row = Row.STEP

    schema: TableSchema = field(default_factory=lambda: TableSchema({}, {}))
    steps_layout: Layout | None = None
    packed: Sequence[str] | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, data: RawData, selection: Selection, spaces: Spaces) -> Self:
        mapping, layout = data.config.input_read_schema, None
        if all(name == column for name, column in mapping.items()):
            layout = common_layout(data, selection, read_steps_layout)
        if layout is not None:
            schema = schema_of_layout(layout, data.names, selection.columns)
        else:
            schema = resolve_schema(data.names, mapping, data.where, selection.columns)
        left_out = _unreadable(schema, data, selection)
        schema = schema.without(left_out)
        return cls(
            selection,
            spaces if layout is None else completed(spaces, layout.spaces),
            None if layout is None else layout.env_name,
            has_trajectories=schema.has_trajectories,
            has_final_obs=schema.has_next_obs,
            schema=_selected(schema, selection),
            steps_layout=layout,
            packed=None if layout is not None else _packed_columns(data, schema),
            left_out=left_out,
        )

    def narrowed(self, selection: Selection) -> Self:
        layout = None if self.steps_layout is None else selection.layout(self.steps_layout)
        return replace(self, selection=selection, schema=_selected(self.schema, selection), steps_layout=layout)

    # -- reading ---------------------------------------------------------------------------------------------------

    def blocks(self, files: InputFiles | None, tables: Iterator[RawTable], counts: ReadCounts) -> Iterator[ColumnBlock]:
        counts.columns_left_out.update(self.left_out)
        assembler = TrajectoryAssembler(self.schema, counts)
        for table, place in tables:
            yield from assembler.add(self._read(table, place, counts), place)
        yield from assembler.finish()

    def decode(self, table: pa.Table, place: DataLocation, counts: ReadCounts) -> list[ColumnBlock]:
        assembler = TrajectoryAssembler(self.schema, counts)
        return [*assembler.add(self._read(table, place, counts), place), *assembler.finish()]

    def _read(self, table: pa.Table, place: DataLocation, counts: ReadCounts) -> StepRows:
        if self.packed is not None:
            _check_unpacked(table, self.packed, place)
        schema = self.schema.without(counts.columns_left_out)
        left_out = counts.columns_left_out if self.selection.columns is None else None
        rows = read_steps(table, schema, self.steps_layout, place, left_out)
        if rows.new_obs is not None:
            check_new_obs(rows.columns[OBS], rows.new_obs, place.of(NEW_OBS))
        if self.steps_layout is not None:
            return rows
        new_obs = {} if rows.new_obs is None else {NEW_OBS: rows.new_obs}
        fitted = fit_to_spaces({**rows.columns, **new_obs}, self.spaces)
        return replace(rows, new_obs=fitted.pop(NEW_OBS, None), columns=fitted)

    def file_columns(self, schema: pa.Schema) -> list[str] | None:
        if self.steps_layout is None:
            return self.schema.file_columns(schema.names)
        kept = self.steps_layout.selected({*ALWAYS_READ, *self.schema.extra})
        leaves = {leaf.column for leaf in kept.leaves()} | set(self.schema.names.values())
        return [name for name in schema.names if name in leaves or name.partition("/")[0] == NEW_OBS]

    @property
    def has_complete_rows(self) -> bool:
        return not self.has_trajectories

    # -- records ----------------------------------------------------------------------------------------

    def sizes(self, reader: ParquetReader) -> Mapping[str, int]:
        return {"num_steps": reader.num_rows}


def _selected(schema: TableSchema, selection: Selection) -> TableSchema:
    """Return the schema without the columns that are not read."""
    columns = selection.columns
    extra = {name: one for name, one in schema.extra.items() if columns is None or name in columns}
    names = {name: one for name, one in schema.names.items() if selection.with_infos or name not in _INFOS}
    return replace(schema, names=names, extra=extra)


def _unreadable(schema: TableSchema, data: RawData, selection: Selection) -> dict[str, str]:
    """Return the extra columns that pyarrow cannot read. Raises `DataError` if one of them is needed."""
    named = [*schema.names.values(), *(schema.extra.values() if selection.columns is not None else ())]
    needed = {column for name in named for column in schema.columns_of(name)}
    problems = [
        Problem(reason, str(DataLocation(data.where, column=column)), fix="store the column as variable-size lists")
        for column, reason in data.unreadable.items()
        if column in needed
    ]
    if problems:
        raise DataError(problems)
    return {name: data.unreadable[column] for name, column in schema.extra.items() if column in data.unreadable}


def _packed_columns(data: RawData, schema: TableSchema) -> list[str]:
    """Return the columns to unpack. As in RLlib, naming `obs` includes `new_obs`."""
    names = list(data.config.input_compress_columns)
    if OBS in names and NEW_OBS not in names:
        names.append(NEW_OBS)
    return [schema.names.get(canonical_name(name), name) for name in names]


def _check_unpacked(table: pa.Table, packed: Sequence[str], place: DataLocation) -> None:
    """Reject columns that RLlib has packed and the configuration does not name."""
    for name in table.column_names:
        if name not in packed and rllib_tables.is_packed(table[name]):
            fix = f"name it in offline.input_compress_columns: [{name}, ...]"
            raise data_error("this column is packed by RLlib", place.of(name), fix=fix)
