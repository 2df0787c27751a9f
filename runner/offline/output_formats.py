"""What recorded data are written as: Parquet, JSON lines, CSV, and which options each takes."""

from __future__ import annotations

import inspect
import io
from collections.abc import Collection, Mapping
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from runner.config.errors import ConfigError, Problem, list_names, nearest_match
from runner.config.offline import OfflineConfig
from runner.offline.foreign.data_error import first_line
from runner.offline.layout import Layout
from runner.offline.text_tables import write_csv_rows, write_json_rows

_EXTENSIONS = {"write_parquet": "parquet", "write_json": "json", "write_csv": "csv"}
_TEXT_EXTENSIONS = {"gzip": ".gz", "bz2": ".bz2"}
_PARQUET_COMPRESSIONS = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")
_TEXT_OPTIONS = {
    "write_json": {"compression"},
    "write_csv": {"compression", "include_header", "delimiter", "quoting_style", "eol", "batch_size"},
}
_DEFAULT_COMPRESSION = "zstd"
_DEFAULT_PACKED = frozenset(OfflineConfig().output_compress_columns)
_METHOD, _KWARGS = "offline.output_write_method", "offline.output_write_method_kwargs"
_PACKED = "offline.output_compress_columns"


class Sink(Protocol):
    """Turns tables into the bytes of a file."""

    def write(self, table: pa.Table) -> None:
        """Write rows."""

    def close(self) -> None:
        """Write what ends the file."""


def make_sink(config: OfflineConfig, schema: pa.Schema, stream: Any) -> Sink:
    """Return what `output_write_method` names, into an open file."""
    if config.output_write_method == "write_parquet":
        return _ParquetSink(config, schema, stream)
    return _TextSink(config, stream)


def file_extension(config: OfflineConfig) -> str:
    """Return how the names of files end, without the first dot."""
    extension, compression = _EXTENSIONS[config.output_write_method], _compression(config)
    return extension if extension == "parquet" else extension + _TEXT_EXTENSIONS.get(str(compression), "")


class _ParquetSink:
    """Parquet, a row group a table."""

    def __init__(self, config: OfflineConfig, schema: pa.Schema, stream: Any) -> None:
        options = dict(config.output_write_method_kwargs)
        self._row_group_size = options.pop("row_group_size", None)
        options["compression"] = _compression_by_path(config, schema)
        flat = [column.name for column in schema if not pa.types.is_nested(column.type)]
        options = {"use_dictionary": False, "write_statistics": flat} | options
        self._writer = pq.ParquetWriter(stream, schema, **options)

    def write(self, table: pa.Table) -> None:
        """Write rows."""
        self._writer.write_table(table, row_group_size=self._row_group_size or table.num_rows)

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()


def _compression_by_path(config: OfflineConfig, schema: pa.Schema) -> dict[str, str]:
    """Return path of each column in Parquet -> its compression."""
    given = config.output_write_method_kwargs.get("compression", _DEFAULT_COMPRESSION) or "none"
    packed = () if given == "none" else config.output_compress_columns
    columns = given if isinstance(given, Mapping) else dict.fromkeys(packed, "lz4")
    rest = _DEFAULT_COMPRESSION if isinstance(given, Mapping) else given
    return {path: columns.get(_base_name(name), rest) for path, name in _parquet_paths(schema).items()}


def _parquet_paths(schema: pa.Schema) -> dict[str, str]:
    """Return path of each column in Parquet -> the column of the schema that it belongs to."""
    buffer = io.BytesIO()
    pq.write_table(schema.empty_table(), buffer)
    parquet = pq.ParquetFile(io.BytesIO(buffer.getvalue())).schema
    paths = [parquet.column(index).path for index in range(len(parquet))]
    names = sorted(schema.names, key=len, reverse=True)
    return {path: next(n for n in names if path == n or path.startswith(f"{n}.")) for path in paths}


def _base_name(column: str) -> str:
    return column.partition("/")[0]


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
        if self._is_json:
            write_json_rows(table, self._stream)
        else:
            has_header = self._is_first and self._options.get("include_header", True)
            write_csv_rows(table, self._stream, self._options | {"include_header": has_header})
        self._is_first = False

    def close(self) -> None:
        """End the compression; nothing else ends such a file."""
        if hasattr(self._stream, "closed") and not self._stream.closed:
            self._stream.flush()
            self._stream.close()


# --- checks ---------------------------------------------------------------------------------------


def check_output_options(config: OfflineConfig) -> None:
    """Refuse options that are not known, have no effect, or do not work; raises `ConfigError`."""
    method = config.output_write_method
    if method not in _EXTENSIONS:
        nearest = nearest_match(method, _EXTENSIONS)
        raise ConfigError([Problem("there is no such way to write", _METHOD, method, list_names(_EXTENSIONS), nearest)])
    if method != "write_parquet" and config.output_write_episodes:
        what = f"{method} writes tables only"
        raise ConfigError([Problem(what, _METHOD, method, "write_parquet, or offline.output_write_episodes=false")])
    problems = [*_find_unknown(config, method), *_find_compression_fault(config, method)]
    problems = problems or _find_fault(config)
    if problems:
        raise ConfigError(problems)


def check_columns(config: OfflineConfig, layout: Layout) -> None:
    """Refuse names of columns to compress that the data do not have; raises `ConfigError`."""
    known, compression = {*layout.columns, "new_obs"}, _compression(config)
    named = {name: _PACKED for name in config.output_compress_columns if name not in _DEFAULT_PACKED}
    named |= {name: f"{_KWARGS}.compression" for name in compression} if isinstance(compression, Mapping) else {}
    problems = [
        Problem("there is no such column", where, name, list_names(known), nearest_match(name, known))
        for name, where in named.items()
        if name not in known
    ]
    if problems:
        raise ConfigError(problems)


def _compression(config: OfflineConfig) -> Any:
    return config.output_write_method_kwargs.get("compression")


def _find_unknown(config: OfflineConfig, method: str) -> list[Problem]:
    known = _known_options(method)
    return [
        Problem(f"{method} has no option {name}", _KWARGS, str(value), list_names(known), nearest_match(name, known))
        for name, value in config.output_write_method_kwargs.items()
        if name not in known
    ]


def _known_options(method: str) -> Collection[str]:
    if method in _TEXT_OPTIONS:
        return _TEXT_OPTIONS[method]
    names = set(inspect.signature(pq.ParquetWriter.__init__).parameters)
    return names - {"self", "where", "schema", "filesystem", "options"} | {"row_group_size"}


def _find_compression_fault(config: OfflineConfig, method: str) -> list[Problem]:
    """Return an unknown compression, and `output_compress_columns` where it would have no effect."""
    given, packed = _compression(config), config.output_compress_columns
    known = _PARQUET_COMPRESSIONS if method == "write_parquet" else tuple(_TEXT_EXTENSIONS)
    names = list(given.values()) if isinstance(given, Mapping) and method == "write_parquet" else [given]
    problems = [
        Problem("unknown compression", f"{_KWARGS}.compression", str(n), ", ".join(known), nearest_match(str(n), known))
        for n in names
        if n is not None and n not in known
    ]
    if set(packed) <= _DEFAULT_PACKED:
        return problems
    if method != "write_parquet":
        problems.append(Problem(f"{method} does not compress single columns", _PACKED, str(packed), "leave it out"))
    elif given == "none" or isinstance(given, Mapping):
        what = f"{_KWARGS}.compression tells the compression of all columns"
        problems.append(Problem(what, _PACKED, str(packed), "leave it out"))
    return problems


def _find_fault(config: OfflineConfig) -> list[Problem]:
    """Return what writing a row to memory says of the options' values, before anything is recorded."""
    table = pa.table({"obs": [0.0]})
    try:
        sink = make_sink(config, table.schema, pa.BufferOutputStream())
        sink.write(table)
        sink.close()
    except (TypeError, ValueError, AttributeError, OSError, pa.ArrowException) as error:
        what = f"{config.output_write_method} does not work with these options: {first_line(error)}"
        return [Problem(what, _KWARGS, str(config.output_write_method_kwargs))]
    return []
