"""Recorded episodes on their way to disk: one open file at a time, that is followed by the next when it is full.

Files are `<output>/episodes-<writer>-<number>.parquet` (or `steps-...`). One is written under a hidden name beside its
final one and renamed when it is whole: readers never see a part of a file, and nothing that exists is written over.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from pyarrow import fs

from runner.config.errors import ConfigError, Problem, RunFailure, list_names, nearest_match
from runner.config.offline import OfflineConfig
from runner.episodes import nested
from runner.episodes.columns import ColumnBlock
from runner.offline.episode_format import episodes_to_table
from runner.offline.filesystems import Location, locate
from runner.offline.layout import Layout, Spaces, layout_of
from runner.offline.table_format import block_to_steps
from runner.offline.text_tables import write_csv_rows, write_json_rows

EXTENSIONS = {"write_parquet": "parquet", "write_json": "json", "write_csv": "csv"}
DATA_SUFFIXES = (".parquet", ".json", ".jsonl", ".ndjson", ".csv", ".h5", ".hdf5")
_ROW_GROUP_BYTES = 2**22
_DEFAULT_COMPRESSED = frozenset(OfflineConfig().output_compress_columns)
_TEXT_OPTIONS = {"write_json": {"compression"}, "write_csv": {"compression", "include_header", "delimiter"}}
_INFO_NAMES = ("infos", "new_infos")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class WriteReport:
    """What one writer has put on disk."""

    files: tuple[str, ...] = ()
    episodes: int = 0
    steps: int = 0
    num_bytes: int = 0

    def __add__(self, other: WriteReport) -> WriteReport:
        return WriteReport(
            self.files + other.files,
            self.episodes + other.episodes,
            self.steps + other.steps,
            self.num_bytes + other.num_bytes,
        )


class WriteFailed(RunFailure):
    """Recorded data that could not be written."""


def prepare_output(config: OfflineConfig) -> Location:
    """Check once, before any writer starts, that `offline.output` can be written to; make the folder.

    Raises:
        ConfigError: there is none, the folder has data already and `output_append` is false, it cannot be written to,
            or options that do not go together.
    """
    if config.output is None:
        raise ConfigError([Problem("there is no folder to record in", "offline.output", "null")])
    _check_method(config)
    location = _locate_output(config)
    info = location.info()
    if info.type == fs.FileType.File:
        raise ConfigError([Problem("a folder is needed to record in, this is a file", "offline.output", config.output)])
    if info.type == fs.FileType.Directory and not config.output_append:
        data = [name for name in _names_in(location) if name.endswith(DATA_SUFFIXES)]
        if data:
            what = f"the folder has data already: {', '.join(data[:3])}" + (", ..." if len(data) > 3 else "")
            allowed = "an empty folder, or offline.output_append=true to add files to these"
            raise ConfigError([Problem(what, "offline.output", config.output, allowed)])
    probe = f"{location.path}/.runner-{os.getpid()}.tmp"
    try:
        location.filesystem.create_dir(location.path, recursive=True)
        with location.filesystem.open_output_stream(probe) as stream:
            stream.write(b"")
        location.filesystem.delete_file(probe)
    except OSError as error:
        what = f"the folder cannot be written to: {_reason(error)}"
        raise ConfigError([Problem(what, "offline.output", config.output)]) from None
    return location


class EpisodeWriter:
    """Writes blocks of episodes to one file after another.

    `with EpisodeWriter(...) as writer: writer.add(block)`; an exception inside leaves no part of a file behind. Call
    `prepare_output` once before; any number of writers with ids of their own may then write at the same time.
    """

    def __init__(
        self, config: OfflineConfig, spaces: Spaces | None = None, env_name: str | None = None, writer_id: str = "0"
    ) -> None:
        """Nothing is written yet.

        Args:
            config: the `output...` options.
            spaces, env_name: kept in the files.
            writer_id: distinguishes the files of writers of one folder.

        Raises:
            ConfigError: options that do not go together.
        """
        _check_method(config)
        self._config = config
        self._spaces, self._env_name = spaces, env_name
        self._location = _locate_output(config)
        self._id = _UNSAFE.sub("-", writer_id)
        self._files: dict[str | None, _RollingFile] = {}
        self._report = WriteReport()
        self._is_closed = False

    def add(self, block: ColumnBlock) -> None:
        """Take over the episodes of a block; its arrays may be reused afterwards.

        Raises:
            WriteFailed: the disk is full, the folder is gone, ...
            ConfigError: an episode that cannot be recorded, or does not fit those before.
        """
        if self._is_closed:
            raise ValueError("the writer is closed")
        if len(block) == 0:
            return
        module_id = block.module_id if block.agents is not None else None
        file = self._files.get(module_id)
        try:
            if file is None:
                layout = layout_of(block, self._spaces, self._env_name)
                file = self._files[module_id] = _RollingFile(self, layout, module_id)
            table = file.table_of(block)
        except (TypeError, ValueError) as error:
            raise ConfigError([Problem(f"these episodes cannot be recorded: {error}", "offline.output")]) from error
        file.add(table)
        self._count(len(block), block.num_rows)

    def _count(self, episodes: int, steps: int) -> None:
        self._report += WriteReport(episodes=episodes, steps=steps)

    def close(self) -> WriteReport:
        """Write what is left and finish the open file.

        Raises:
            WriteFailed: as in `add`; or the rows on disk are not as many as were added.
        """
        if not self._is_closed:
            self._is_closed = True
            for file in self._files.values():
                file.close()
            done = [written for file in self._files.values() for written in file.written]
            rows = sum(written.rows for written in done)
            expected = self._report.episodes if self._config.output_write_episodes else self._report.steps
            if rows != expected:
                raise WriteFailed(Problem(f"{rows} rows are on disk, {expected} were recorded", self._location.shown))
            files = tuple(written.path for written in done)
            self._report += WriteReport(files, num_bytes=sum(written.num_bytes for written in done))
        return self._report

    def abort(self) -> None:
        """Drop the open file; files that are whole stay."""
        self._is_closed = True
        for file in self._files.values():
            file.abort()

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


@dataclass(frozen=True)
class _Written:
    path: str
    rows: int
    num_bytes: int


class _Sink(Protocol):
    """Turns tables into the bytes of a file."""

    def write(self, table: pa.Table) -> None:
        """Write rows."""

    def close(self) -> None:
        """Write what ends the file."""


@dataclass
class _OpenFile:
    final: str
    temporary: str
    stream: Any
    sink: _Sink
    names: list[str]
    rows: int = 0


@dataclass
class _RollingFile:
    """The files of one module: rows are gathered to row groups, row groups to files."""

    writer: EpisodeWriter
    layout: Layout
    module_id: str | None
    written: list[_Written] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._config = self.writer._config
        self._location = self.writer._location
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._open: _OpenFile | None = None
        self._info_fields: dict[str, pa.Field] = {}
        self._names: list[str] = []
        limit = self._config.output_max_file_size
        self._group_bytes = min(_ROW_GROUP_BYTES, limit) if limit else _ROW_GROUP_BYTES
        _check_compressed(self._config, self.layout)

    def table_of(self, block: ColumnBlock) -> pa.Table:
        """The block's rows, with a copy of its data."""
        own = {name: nested.map_leaves(np.copy, column) for name, column in block.columns.items()}
        own_block = ColumnBlock(
            own,
            block.lengths.copy(),
            block.is_terminated.copy(),
            block.is_truncated.copy(),
            block.t_started.copy(),
            block.episode_ids,
            infos=block.infos,
            module_id=block.module_id,
            agents=block.agents,
        )
        merged = self.layout.merged_with(layout_of(block, self.writer._spaces, self.writer._env_name))
        self.layout = merged
        make = episodes_to_table if self._config.output_write_episodes else block_to_steps
        return make(own_block, layout=merged)

    def add(self, table: pa.Table) -> None:
        """Take rows, and write as many as make a row group."""
        while table.num_rows:
            room = table.num_rows
            if self._config.output_max_rows_per_file is not None:
                room = min(room, self._config.output_max_rows_per_file - self._rows_of_file())
            rows = max(1, min(room, self._rows_that_fit(table)))
            self._take(table.slice(0, rows))
            table = table.slice(rows)

    def _rows_that_fit(self, table: pa.Table) -> int:
        per_row = max(1, int(table.nbytes) // int(table.num_rows))
        return max(1, (self._group_bytes - self._waiting_bytes) // per_row + 1)

    def _take(self, rows: pa.Table) -> None:
        rows = self._with_infos(rows)
        if self._waiting and rows.column_names != self._waiting[0].column_names:
            self._flush()  # the first infos
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        limit = self._config.output_max_rows_per_file
        is_full = limit is not None and self._rows_of_file() >= limit
        if is_full or self._waiting_bytes >= self._group_bytes:
            self._flush()
        if is_full:
            self._finish()

    def _with_infos(self, rows: pa.Table) -> pa.Table:
        """Rows with columns for infos once there have been any, so that all files from then on have one schema."""
        if any(name in rows.column_names for name in _INFO_NAMES):
            self._info_fields = {name: rows.schema.field(name) for name in _INFO_NAMES if name in rows.column_names}
            self._names = rows.column_names
        elif self._info_fields:
            for column in self._info_fields.values():
                rows = rows.append_column(column, pa.nulls(rows.num_rows, column.type))
            rows = rows.select(self._names)
        return rows

    def _rows_of_file(self) -> int:
        waiting = sum(int(table.num_rows) for table in self._waiting)
        return waiting + (self._open.rows if self._open else 0)

    def _flush(self) -> None:
        """Write the rows that wait as one row group."""
        if not self._waiting:
            return
        table = pa.concat_tables([rows.replace_schema_metadata(None) for rows in self._waiting])
        table = table.replace_schema_metadata(self._waiting[-1].schema.metadata)
        self._waiting, self._waiting_bytes = [], 0
        if self._open is not None and self._open.names != table.column_names:
            self._finish()  # a file has one schema
        try:
            if self._open is None:
                self._open = self._start(table.schema)
            self._open.sink.write(table)
            self._open.rows += table.num_rows
            size = self._open.stream.tell()
        except (OSError, pa.ArrowException) as error:
            raise self._failure(error) from error
        limit = self._config.output_max_file_size
        if limit is not None and size >= limit:
            self._finish()

    def _start(self, schema: pa.Schema) -> _OpenFile:
        final = self._free_name()
        folder, _, name = final.rpartition("/")
        temporary = f"{folder}/.{name}.tmp"
        self._location.filesystem.create_dir(folder, recursive=True)
        stream = self._location.filesystem.open_output_stream(temporary)
        try:
            return _OpenFile(final, temporary, stream, _make_sink(self._config, schema, stream), schema.names)
        except BaseException:
            stream.close()
            self._location.filesystem.delete_file(temporary)
            raise

    def _free_name(self) -> str:
        kind = "episodes" if self._config.output_write_episodes else "steps"
        module = "" if self.module_id is None else f"-{_UNSAFE.sub('-', self.module_id)}"
        stem = f"{kind}-{self.writer._id}{module}-"
        extension = EXTENSIONS[self._config.output_write_method] + _text_compression(self._config)
        numbers = [
            int(match.group(1))
            for name in _names_in(self._location)
            if (match := re.fullmatch(re.escape(stem) + r"(\d+)\..*", name.lstrip(".")))
        ]
        return f"{self._location.path}/{stem}{max(numbers, default=-1) + 1:06d}.{extension}"

    def _finish(self) -> None:
        """Finish the open file: from here on it has its name."""
        if self._open is None:
            return
        file, self._open = self._open, None
        try:
            file.sink.close()
            file.stream.close()
            self._publish(file)
            size = self._location.filesystem.get_file_info(file.final).size
        except (OSError, pa.ArrowException) as error:
            self._remove(file)
            raise self._failure(error) from error
        self.written.append(_Written(file.final, file.rows, int(size or 0)))

    def _publish(self, file: _OpenFile) -> None:
        if self._location.is_local:
            with open(file.temporary, "rb") as written:
                os.fsync(written.fileno())
            try:
                os.link(file.temporary, file.final)  # fails if the name is taken, unlike a rename
            except PermissionError:  # a file system without hard links
                self._move(file)
            else:
                os.unlink(file.temporary)
        else:
            self._move(file)

    def _move(self, file: _OpenFile) -> None:
        if self._location.filesystem.get_file_info(file.final).type != fs.FileType.NotFound:
            raise FileExistsError(f"{file.final} exists already")
        self._location.filesystem.move(file.temporary, file.final)

    def close(self) -> None:
        """Write all that waits."""
        self._flush()
        self._finish()

    def abort(self) -> None:
        """Remove the open file."""
        if self._open is not None:
            file, self._open = self._open, None
            self._remove(file)

    def _remove(self, file: _OpenFile) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            file.stream.close()
        with contextlib.suppress(OSError):
            self._location.filesystem.delete_file(file.temporary)

    def _failure(self, error: Exception) -> WriteFailed:
        return WriteFailed(Problem(f"recorded episodes cannot be written: {_reason(error)}", self._location.shown))


# --- formats --------------------------------------------------------------------------------------


def _make_sink(config: OfflineConfig, schema: pa.Schema, stream: Any) -> _Sink:
    if config.output_write_method == "write_parquet":
        return _ParquetSink(config, schema, stream)
    return _TextSink(config, stream)


class _ParquetSink:
    """Parquet, a row group a table."""

    def __init__(self, config: OfflineConfig, schema: pa.Schema, stream: Any) -> None:
        options = dict(config.output_write_method_kwargs)
        self._row_group_size = options.pop("row_group_size", None)
        paths = parquet_paths(schema)
        compression = options.pop("compression", "zstd")
        if not isinstance(compression, dict):
            packed = {name for name in config.output_compress_columns if compression not in ("none", None)}
            compression = {
                path: "lz4" if _base_name(column) in packed else compression or "none" for path, column in paths.items()
            }
        flat = [column.name for column in schema if not pa.types.is_nested(column.type)]
        options = {"use_dictionary": False, "write_statistics": flat} | options
        self._writer = pq.ParquetWriter(stream, schema, compression=compression, **options)

    def write(self, table: pa.Table) -> None:
        """Write rows."""
        self._writer.write_table(table, row_group_size=self._row_group_size or table.num_rows)

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()


class _TextSink:
    """JSON lines or CSV, compressed or not."""

    def __init__(self, config: OfflineConfig, stream: Any) -> None:
        options = dict(config.output_write_method_kwargs)
        compression = options.pop("compression", None)
        self._stream = stream if compression is None else pa.CompressedOutputStream(stream, compression)
        self._is_json = config.output_write_method == "write_json"
        self._options = options
        self._is_first = True

    def write(self, table: pa.Table) -> None:
        """Write rows."""
        buffer = io.BytesIO()
        if self._is_json:
            write_json_rows(table, buffer)
        else:
            options = dict(self._options)
            options["include_header"] = self._is_first and options.get("include_header", True)
            write_csv_rows(table, buffer, options)
        self._is_first = False
        self._stream.write(buffer.getvalue())

    def close(self) -> None:
        """Nothing ends such a file but the compression."""
        if hasattr(self._stream, "closed") and not self._stream.closed:
            self._stream.flush()
            self._stream.close()


def parquet_paths(schema: pa.Schema) -> dict[str, str]:
    """Path of each column in Parquet -> the column of the schema that it belongs to."""
    buffer = io.BytesIO()
    pq.write_table(schema.empty_table(), buffer)
    parquet = pq.ParquetFile(io.BytesIO(buffer.getvalue())).schema
    paths = [parquet.column(index).path for index in range(len(parquet))]
    names = sorted(schema.names, key=len, reverse=True)
    return {path: next(n for n in names if path == n or path.startswith(f"{n}.")) for path in paths}


def _base_name(column: str) -> str:
    return column.partition("/")[0]


# --- checks ---------------------------------------------------------------------------------------


def _locate_output(config: OfflineConfig) -> Location:
    return locate(
        str(config.output), config.output_filesystem, config.output_filesystem_kwargs, "offline.output_filesystem"
    )


def _names_in(location: Location) -> list[str]:
    found = location.filesystem.get_file_info(fs.FileSelector(location.path, allow_not_found=True))
    return sorted(info.base_name for info in found if info.type == fs.FileType.File)


def _check_method(config: OfflineConfig) -> None:
    method, where = config.output_write_method, "offline.output_write_method"
    if method not in EXTENSIONS:
        allowed = list_names(EXTENSIONS)
        raise ConfigError(
            [Problem("there is no such way to write", where, method, allowed, nearest_match(method, EXTENSIONS))]
        )
    if method != "write_parquet" and config.output_write_episodes:
        what = f"{method} writes tables only"
        raise ConfigError([Problem(what, where, method, "write_parquet, or offline.output_write_episodes=false")])
    known = _known_options(method)
    problems = [
        Problem(
            f"{method} has no option {name}",
            "offline.output_write_method_kwargs",
            str(value),
            list_names(known),
            nearest_match(name, known),
        )
        for name, value in config.output_write_method_kwargs.items()
        if name not in known
    ]
    problems += _check_compression(config, method)
    if problems:
        raise ConfigError(problems)


def _check_compression(config: OfflineConfig, method: str) -> list[Problem]:
    options: Mapping[str, Any] = config.output_write_method_kwargs
    given = options.get("compression")
    if given is None or isinstance(given, dict):
        return []
    known = ["none", "snappy", "gzip", "brotli", "lz4", "zstd"] if method == "write_parquet" else ["gzip", "bz2"]
    if given in known:
        return []
    where = "offline.output_write_method_kwargs.compression"
    return [Problem("unknown compression", where, str(given), ", ".join(known), nearest_match(str(given), known))]


def _known_options(method: str) -> set[str]:
    if method in _TEXT_OPTIONS:
        return _TEXT_OPTIONS[method]
    names = set(inspect.signature(pq.ParquetWriter.__init__).parameters)
    return names - {"self", "where", "schema", "filesystem", "options"} | {"row_group_size"}


def _check_compressed(config: OfflineConfig, layout: Layout) -> None:
    known = {*layout.columns, "new_obs"}
    for name in config.output_compress_columns:
        if name not in known and name not in _DEFAULT_COMPRESSED:
            where = "offline.output_compress_columns"
            problem = Problem("there is no such column", where, name, list_names(known), nearest_match(name, known))
            raise ConfigError([problem])


def _text_compression(config: OfflineConfig) -> str:
    given = config.output_write_method_kwargs.get("compression")
    if config.output_write_method == "write_parquet" or given is None:
        return ""
    return {"gzip": ".gz", "bz2": ".bz2"}[given]


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return next(iter(str(error).splitlines()), type(error).__name__)
