"""The formats in which recorded data are written (Parquet, JSON lines, CSV, Ray Data), and their options."""

from __future__ import annotations

import inspect
import io
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from runner.config.errors import ConfigError, Problem, list_names, nearest_match
from runner.config.imports import import_target
from runner.config.offline import OfflineConfig
from runner.offline.codecs.layout import AGENTS, Layout
from runner.offline.files.data_error import first_line
from runner.offline.files.ray_data import RayFunction, described, find_argument_faults, unknown_options
from runner.offline.writing.text_tables import write_csv_rows, write_json_rows

METHOD, KWARGS = "offline.output_write_method", "offline.output_write_method_kwargs"
# Option of `runner` that works with every function: columns to write, in this order.
COLUMNS = "columns"
# Options that `runner` sets, that have no effect, or that would write several files.
_GIVEN = ("filesystem", "mode", "try_create_dir", "min_rows_per_file", "max_rows_per_file", "num_rows_per_file")
_NO_PLACE = "does not take a location to write to"
# Functions that are not supported -> reason.
_REFUSED = {
    "write_datasink": _NO_PLACE,
    "write_turbopuffer": _NO_PLACE,
    "write_numpy": "writes only one column, but a step has several",
    "write_images": "writes only one column, but a step has several",
}
_EXTENSIONS = {"write_webdataset": "tar"}


def write_function(config: OfflineConfig) -> RayFunction | None:
    """Return the function of `output_write_method`, or None for a class of `OUTPUT_FORMATS`.

    Raises:
        ConfigError: the function does not exist, does not take `offline.output`, or cannot store recorded steps.
    """
    method = config.output_write_method
    if method in OUTPUT_FORMATS:
        return None
    if "." in method:
        return described(method, import_target(method, METHOD), METHOD, num_before=1)
    import ray.data

    functions = {name: getattr(ray.data.Dataset, name) for name in dir(ray.data.Dataset) if name.startswith("write_")}
    known = [*OUTPUT_FORMATS, *(name for name in functions if name not in OUTPUT_FORMATS and name not in _REFUSED)]
    if method not in functions or method in _REFUSED:
        what = f"{method} of ray.data {_REFUSED[method]}" if method in _REFUSED else "unknown write method"
        expected = f"{list_names(known, method)}; or package.module.function that takes a Ray data set"
        raise ConfigError([Problem(what, METHOD, method, expected, nearest_match(method, known))])
    is_of_files = "filename_provider" in inspect.signature(functions[method]).parameters
    return described(method, functions[method], METHOD, _GIVEN if is_of_files else (), is_of_files, num_before=1)


def check_write_function(config: OfflineConfig, found: RayFunction) -> None:
    """Reject arguments that the function does not take. Raises `ConfigError`."""
    given = config.output_write_method_kwargs
    checked = {name: value for name, value in given.items() if not found.is_open or name in _GIVEN}
    problems = unknown_options(found.name, checked, [COLUMNS, *found.options], KWARGS)
    if found.name == "write_webdataset" and "encoder" not in given:
        what = "write_webdataset chooses a file type by the ending of a column name, which columns of steps lack"
        fix = "set encoder: {_target_: package.module.function, _partial_: true}, a function from a row to bytes"
        problems.append(Problem(what, f"{KWARGS}.encoder", fix=fix))
    columns = given.get(COLUMNS, [])
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        what = "columns must be a list of names"
        problems.append(Problem(what, f"{KWARGS}.{COLUMNS}", str(columns), "[eps_id, t, obs, ...]"))
    problems = problems or find_argument_faults(found, given, KWARGS)
    if problems:
        raise ConfigError(problems)


_TEXT_EXTENSIONS = {"gzip": ".gz", "bz2": ".bz2"}
_DEFAULT_COMPRESSION = "zstd"
_DEFAULT_PACKED = frozenset(OfflineConfig().output_compress_columns)
_PACKED = "offline.output_compress_columns"


class OutputFormat(ABC):
    """Writes tables to a file in one format. To add a format, derive from it and extend `OUTPUT_FORMATS`.

    Args:
        config: the `offline` block.
        schema: schema of the tables.
        stream: open file.

    Attributes:
        extension: extension of files, without the first dot.
        packed_extensions: compression of entire files -> additional extension.
        compressions: supported compressions.
        has_lists: whether columns may be lists, so that a row may be an episode, and are compressed separately.
    """

    extension: ClassVar[str]
    packed_extensions: ClassVar[Mapping[str, str]] = {}
    compressions: ClassVar[Sequence[str]]
    has_lists: ClassVar[bool] = False

    @abstractmethod
    def __init__(self, config: OfflineConfig, schema: pa.Schema, stream: Any) -> None: ...

    @classmethod
    @abstractmethod
    def options(cls) -> Collection[str]:
        """Return the allowed names in `output_write_method_kwargs`."""

    @abstractmethod
    def write(self, table: pa.Table) -> None:
        """Write rows."""

    @abstractmethod
    def close(self) -> None:
        """Write the end of the file."""


class ParquetOutput(OutputFormat):
    """Parquet, with one row group per table."""

    extension = "parquet"
    compressions = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")
    has_lists = True

    def __init__(self, config: OfflineConfig, schema: pa.Schema, stream: Any) -> None:
        options = dict(config.output_write_method_kwargs)
        self._row_group_size = options.pop("row_group_size", None)
        options["compression"] = _compression_by_path(config, schema)
        flat = [column.name for column in schema if not pa.types.is_nested(column.type)]
        options = {"use_dictionary": False, "write_statistics": flat} | options
        self._writer = pq.ParquetWriter(stream, schema, **options)

    @classmethod
    def options(cls) -> Collection[str]:
        names = set(inspect.signature(pq.ParquetWriter.__init__).parameters)
        return names - {"self", "where", "schema", "filesystem", "options"} | {"row_group_size"}

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=self._row_group_size or table.num_rows)

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()


def _compression_by_path(config: OfflineConfig, schema: pa.Schema) -> dict[str, str]:
    """Return the Parquet path of each column -> compression."""
    given = config.output_write_method_kwargs.get("compression", _DEFAULT_COMPRESSION) or "none"
    packed = () if given == "none" else config.output_compress_columns
    columns = given if isinstance(given, Mapping) else dict.fromkeys(packed, "lz4")
    rest = _DEFAULT_COMPRESSION if isinstance(given, Mapping) else given
    return {path: columns.get(_base_name(name), rest) for path, name in _parquet_paths(schema).items()}


def _parquet_paths(schema: pa.Schema) -> dict[str, str]:
    """Return the Parquet path of each column -> column of the schema."""
    buffer = io.BytesIO()
    pq.write_table(schema.empty_table(), buffer)
    parquet = pq.ParquetFile(io.BytesIO(buffer.getvalue())).schema
    paths = [parquet.column(index).path for index in range(len(parquet))]
    names = sorted(schema.names, key=len, reverse=True)
    return {path: next(n for n in names if path == n or path.startswith(f"{n}.")) for path in paths}


def _base_name(column: str) -> str:
    parts = column.split("/")
    return parts[2] if parts[0] == AGENTS and len(parts) > 2 else parts[0]


class TextOutput(OutputFormat):
    """Lines of text, optionally compressed as one file."""

    packed_extensions = _TEXT_EXTENSIONS
    compressions = tuple(_TEXT_EXTENSIONS)

    def __init__(self, config: OfflineConfig, schema: pa.Schema, stream: Any) -> None:
        self._options = dict(config.output_write_method_kwargs)
        compression = self._options.pop("compression", None)
        self._stream = stream if compression is None else pa.CompressedOutputStream(stream, compression)

    def close(self) -> None:
        """Finish the compressed stream; plain text needs no end."""
        if hasattr(self._stream, "closed") and not self._stream.closed:
            self._stream.flush()
            self._stream.close()


class JsonOutput(TextOutput):
    """JSON lines."""

    extension = "json"

    @classmethod
    def options(cls) -> Collection[str]:
        return {"compression"}

    def write(self, table: pa.Table) -> None:
        write_json_rows(table, self._stream)


class CsvOutput(TextOutput):
    """CSV with one header per file."""

    extension = "csv"
    _is_first = True

    @classmethod
    def options(cls) -> Collection[str]:
        return {"compression", "include_header", "delimiter", "quoting_style", "eol", "batch_size"}

    def write(self, table: pa.Table) -> None:
        has_header = self._is_first and self._options.get("include_header", True)
        write_csv_rows(table, self._stream, self._options | {"include_header": has_header})
        self._is_first = False


# `offline.output_write_method` -> class.
OUTPUT_FORMATS: Mapping[str, type[OutputFormat]] = {
    "write_parquet": ParquetOutput,
    "write_json": JsonOutput,
    "write_csv": CsvOutput,
}


def file_extension(config: OfflineConfig) -> str:
    """Return the extension of file names, without the first dot."""
    function = write_function(config)
    if function is not None:
        return _EXTENSIONS.get(function.name, function.name.removeprefix("write_"))
    found = OUTPUT_FORMATS[config.output_write_method]
    return found.extension + found.packed_extensions.get(str(_compression(config)), "")


# --- checks ---------------------------------------------------------------------------------------


def check_output_options(config: OfflineConfig) -> None:
    """Reject options that are unknown, have no effect, or do not work. Raises `ConfigError`."""
    if config.output_episode_format != "columns" and not config.output_write_episodes:
        what = "offline.output_episode_format only applies to rows that are episodes, but rows are steps"
        where, fix = "offline.output_episode_format", "set offline.output_write_episodes=true"
        raise ConfigError([Problem(what, where, config.output_episode_format, "columns", fix=fix)])
    function, method = write_function(config), config.output_write_method
    if config.output_write_episodes and (function is not None or not OUTPUT_FORMATS[method].has_lists):
        what = f"{method} can only write steps, not episodes"
        able = [name for name, one in OUTPUT_FORMATS.items() if one.has_lists]
        fix = "set offline.output_write_episodes=false"
        raise ConfigError([Problem(what, METHOD, method, ", ".join(able), fix=fix)])
    if function is not None:
        check_write_function(config, function)
        if config.output_run_folders and not function.is_of_files:
            what = f"offline.output_run_folders needs a method that writes files, but {method} does not"
            raise ConfigError([Problem(what, "offline.output_run_folders", "true", "false")])
        return
    found = OUTPUT_FORMATS[method]
    problems = unknown_options(method, config.output_write_method_kwargs, found.options(), KWARGS)
    problems += _find_compression_fault(config, found)
    problems = problems or _find_fault(config)
    if problems:
        raise ConfigError(problems)


def check_env_episode_options(config: OfflineConfig) -> None:
    """Reject options that multi-agent env episodes do not support. Raises `ConfigError`."""
    options = {
        "output_write_episodes": ("true", config.output_write_episodes),
        "output_episode_format": ("columns", config.output_episode_format == "columns"),
    }
    problems = [
        Problem(
            "multi-agent env episodes can only be recorded as one row per episode",
            f"offline.{name}",
            str(getattr(config, name)).lower(),
            expected,
            fix="record in this format, then use runner convert",
        )
        for name, (expected, is_so) in options.items()
        if not is_so
    ]
    if problems:
        raise ConfigError(problems)


def check_names(named: Mapping[str, str], known: Collection[str]) -> None:
    """Reject unknown columns, given as column -> key that names it. Raises `ConfigError`."""
    problems = [
        Problem("there is no such column", where, name, list_names(known), nearest_match(name, known))
        for name, where in named.items()
        if name not in known
    ]
    if problems:
        raise ConfigError(problems)


def check_columns(config: OfflineConfig, layout: Layout) -> None:
    """Reject unknown columns to compress. Raises `ConfigError`."""
    if config.output_write_method not in OUTPUT_FORMATS:
        return
    compression = _compression(config)
    named = {name: _PACKED for name in config.output_compress_columns if name not in _DEFAULT_PACKED}
    named |= {name: f"{KWARGS}.compression" for name in compression} if isinstance(compression, Mapping) else {}
    check_names(named, {*layout.columns, "new_obs"})


def _compression(config: OfflineConfig) -> Any:
    return config.output_write_method_kwargs.get("compression")


def _find_compression_fault(config: OfflineConfig, found: type[OutputFormat]) -> list[Problem]:
    """Return problems of an unknown compression, or of `output_compress_columns` without effect."""
    given, packed, known = _compression(config), config.output_compress_columns, found.compressions
    names = list(given.values()) if isinstance(given, Mapping) and found.has_lists else [given]
    problems = [
        Problem("unknown compression", f"{KWARGS}.compression", str(n), ", ".join(known), nearest_match(str(n), known))
        for n in names
        if n is not None and n not in known
    ]
    if set(packed) <= _DEFAULT_PACKED:
        return problems
    if not found.has_lists:
        what = f"{config.output_write_method} does not compress single columns"
        problems.append(Problem(what, _PACKED, str(packed), fix="remove this option"))
    elif given == "none" or isinstance(given, Mapping):
        what = f"{KWARGS}.compression already sets the compression of all columns"
        problems.append(Problem(what, _PACKED, str(packed), fix="remove this option"))
    return problems


def _find_fault(config: OfflineConfig) -> list[Problem]:
    """Find invalid option values by writing a row to memory, before anything is recorded."""
    table = pa.table({"obs": [0.0]})
    try:
        output = OUTPUT_FORMATS[config.output_write_method](config, table.schema, pa.BufferOutputStream())
        output.write(table)
        output.close()
    except (TypeError, ValueError, AttributeError, OSError, pa.ArrowException) as error:
        what = f"{config.output_write_method} does not work with these options: {first_line(error)}"
        return [Problem(what, KWARGS, str(config.output_write_method_kwargs))]
    return []
