"""Recorded data before their format is known: the files, their first rows and their common layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from runner.config.errors import list_names
from runner.config.offline import OfflineConfig
from runner.config.recorded_columns import ALIASES, canonical_name
from runner.episodes.nested import StateError
from runner.offline.codecs.episode_format import is_episodes, read_layout
from runner.offline.codecs.layout import Layout
from runner.offline.codecs.table_format import read_steps_layout
from runner.offline.files.data_error import DataLocation, data_error
from runner.offline.files.input_files import JSON, PARQUET, InputFiles, read_head
from runner.offline.files.parquet_reader import ParquetReader, read_footers
from runner.offline.files.raw_rows import OPTIONAL_COLUMNS, RawReader, differing_columns, read_filter
from runner.offline.files.ray_data import RayReader
from runner.offline.files.text_readers import TEXT_OPTIONS, TextReader
from runner.offline.formats.selection import ALWAYS_READ, ModuleAgents, Selection

_AGENT_ID = "agent_id"
_HEAD_BYTES = 2**16
# Roles of columns that keep their integers in text files: ids beyond 2**53 are not exact as floats.
_INTEGERS = ("eps_id", "agent_id", "t", "actions")
_EXTENSION, _PICKLED = b"ARROW:extension:name", "ray.data.arrow_pickled_object"


class RawData:
    """Opened data. Each property is computed once, on first use.

    Args:
        config: the `offline` block.
        files: the input files, or None if a `ray.data` function reads the data.
    """

    def __init__(self, config: OfflineConfig, files: InputFiles | None) -> None:
        self.config = config
        self.files = files

    @property
    def where(self) -> str:
        """The first file, for messages."""
        return str(self.config.input_) if self.files is None else self.files.paths[0]

    @cached_property
    def head(self) -> bytes:
        """First bytes of the first file if it consists of text lines, else empty. Raises `DataError`."""
        if self.files is None or self.files.kind != JSON:
            return b""
        return read_head(self.files, self.files.paths[0], _HEAD_BYTES)

    @cached_property
    def reader(self) -> RawReader:
        """Reader of the rows, with the filter. Raises `DataError`, `ConfigError`."""
        given = self.config.input_read_method_kwargs
        reader: RayReader | TextReader
        if self.files is not None and self.files.kind == PARQUET:
            footers = read_footers(self.files)
            return ParquetReader(self.files, footers, read_filter(given.get("filter"), footers[0].schema))
        if self.files is None:
            reader = RayReader(self.config)
        else:
            options = {name: value for name, value in given.items() if name in TEXT_OPTIONS[self.files.kind]}
            reader = TextReader(self.files, options, _integer_columns(self.config.input_read_schema))
        reader.row_filter = read_filter(given.get("filter"), reader.schema)
        return reader

    @cached_property
    def schemas(self) -> Sequence[pa.Schema]:
        """Schema of every Parquet file; for other data, only the schema of the first rows."""
        if isinstance(self.reader, ParquetReader):
            return [footer.schema for footer in self.reader.footers]
        return [self.first_rows.schema]

    @cached_property
    def schema(self) -> pa.Schema:
        """Schema of all rows.

        Raises:
            DataError: columns differ between files, two columns have the same name, or one holds pickled objects.
        """
        if self.files is not None:
            _check_same_columns(self.files.paths, self.schemas)
        _check_unique_names(self.schemas[0], self.where)
        return self.schemas[0]

    @cached_property
    def names(self) -> list[str]:
        """Columns of the file that has the most. Raises the same errors as `schema`."""
        return list(max((self.schema, *self.schemas), key=lambda schema: len(schema.names)).names)

    @cached_property
    def first_rows(self) -> pa.Table:
        """The first table of rows; empty if the data do not contain any rows."""
        columns = None if not self.unreadable else [n for n in self.reader.schema.names if n not in self.unreadable]
        tables: Iterator[Any] = self.reader.tables(columns)
        first = next((table for table, _ in tables), None)
        return self.reader.schema.empty_table() if first is None else first

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Columns that pyarrow cannot read -> the reason."""
        return self.reader.unreadable if isinstance(self.reader, ParquetReader) else {}

    def all_files_are(self, kind: str, recognises: Callable[[pa.Schema], bool]) -> bool:
        """Return whether the schemas of all files are recognised. Raises `DataError` if only some are."""
        found = [recognises(schema) for schema in self.schemas]
        if len(set(found)) > 1:
            what = f"some files contain {kind} and others do not: {self.where} and this file"
            raise data_error(what, DataLocation(self.paths[found.index(not found[0])]))
        return found[0]

    def of_module(self, module: ModuleAgents) -> RawData:
        """Return the data without files that do not contain rows of the module's agents.

        Files are left out only if each of them holds one module, because the columns of other modules may differ.

        Raises:
            DataError: files are damaged, an agent does not belong to a module, or none of these agents has a row.
        """
        if self.files is None or self.files.kind != PARQUET:
            return self
        modules = {_module_in(schema) for schema in self.schemas}
        if None in modules or len(modules) < 2:
            return self
        assert isinstance(self.reader, ParquetReader)
        agents = [_agents_in(self.reader.only(number)) for number in range(len(self.files.paths))]
        found, place = dict.fromkeys(agent for of_file in agents for agent in of_file), DataLocation(self.where)
        module.check_known(found, place)
        numbers = [number for number, of_file in enumerate(agents) if not of_file.keys().isdisjoint(module.agents)]
        if not numbers:
            raise module.no_rows(found, place)
        return RawData(self.config, self.files.only(*numbers))

    @property
    def paths(self) -> Sequence[str]:
        """Path of each schema in `schemas`, for messages."""
        return [self.where] if len(self.schemas) == 1 or self.files is None else self.files.paths


def _integer_columns(mapping: Mapping[str, Any]) -> set[str]:
    """Return the file columns of `_INTEGERS`, by their usual names and by `offline.input_read_schema`."""
    given = [columns for name, columns in mapping.items() if canonical_name(name) in _INTEGERS]
    named = {str(one) for columns in given for one in (columns if isinstance(columns, list) else [columns])}
    return named.union(*(ALIASES[name] for name in _INTEGERS))


def _module_in(schema: pa.Schema) -> str | None:
    """Return the acting module of a file of agents' episodes or steps, or None if it is not recorded."""
    if _AGENT_ID not in schema.names:
        return None
    try:
        layout = read_layout(schema) if is_episodes(schema) else read_steps_layout(schema)
    except StateError:  # reported when the file is opened
        return None
    return None if layout is None else layout.module_id


def _agents_in(reader: ParquetReader) -> dict[str, None]:
    """Return the agents of all rows, in order of first appearance."""
    return dict.fromkeys(
        agent for table, _ in reader.tables([_AGENT_ID]) for agent in pc.unique(table[_AGENT_ID]).to_pylist()
    )


def _check_same_columns(paths: Sequence[str], schemas: Sequence[pa.Schema]) -> None:
    """Reject tables whose columns differ."""
    for path, schema in zip(paths, schemas, strict=False):
        odd_names = (set(schema.names) ^ set(schemas[0].names)) - OPTIONAL_COLUMNS
        if odd_names:
            raise differing_columns(odd_names, path, paths[0], schemas[0].names)


def _check_unique_names(schema: pa.Schema, path: str) -> None:
    """Reject duplicate column names and columns of pickled objects."""
    twice = {name for name in schema.names if schema.names.count(name) > 1}
    if twice:
        raise data_error(f"several columns have the name {', '.join(sorted(twice))}", DataLocation(path))
    for field in schema:
        kinds = {getattr(field.type, "extension_name", ""), (field.metadata or {}).get(_EXTENSION, b"").decode()}
        if _PICKLED in kinds:
            what = "columns of pickled objects are not read, because unpickling runs code from the file"
            raise data_error(what, DataLocation(path, column=field.name))


def common_layout(
    data: RawData, selection: Selection, read: Callable[[pa.Schema], Layout | None], keys: Sequence[str] = ()
) -> Layout | None:
    """Return the layout of all files, narrowed to the selection, or None if the files do not record a layout.

    Args:
        data: the files.
        selection: columns to read.
        read: reads the layout from the metadata of a schema.
        keys: required columns in addition to the layout's.

    Raises:
        DataError: metadata is damaged, or columns are missing or differ between files.
    """
    layout: Layout | None = None
    for path, schema in zip(data.paths, data.schemas, strict=True):
        try:
            found = read(schema)
            if found is None:
                return None
            _check_complete(found, schema, path, keys)
            selection.check_columns(found, path)
            found = selection.layout(found)
            layout = found if layout is None else layout.merged_with(found)
        except StateError as error:
            raise data_error(f"the metadata of this file is damaged: {error}", DataLocation(path)) from None
        except ValueError as error:
            what = f"the files have different columns: {error}"
            fix = (
                "use a pattern that matches the files of one module, or set "
                "offline.input_read_method_kwargs.columns=[obs,actions,rewards,...]"
            )
            raise data_error(what, DataLocation(path), expected=f"the columns of {data.where}", fix=fix) from None
    return layout


def _check_complete(layout: Layout, schema: pa.Schema, path: str, keys: Sequence[str]) -> None:
    """Reject a file from which another tool has removed columns that every reader needs."""
    needed = layout.selected(set(ALWAYS_READ)).file_columns()
    missing = [name for name in ALWAYS_READ if name not in layout.columns]
    missing += [name for name in (*needed, *keys) if name not in schema.names]
    if missing:
        raise data_error(
            f"there is no column {', '.join(missing)}", DataLocation(path), expected=list_names(schema.names)
        )
