"""The formats in which recorded data are written (Parquet, JSON lines, CSV, Ray Data) and the options of each."""

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
from runner.offline.files.ray_data import RayFunction, described, find_argument_faults
from runner.offline.writing.text_tables import write_csv_rows, write_json_rows

METHOD, KWARGS = "offline.output_write_method", "offline.output_write_method_kwargs"
# What is ours, and works with every function: which columns are written, in this order.
COLUMNS = "columns"
# Write what they are given by themselves, so that these have no effect, or would leave more than one file.
_GIVEN = ("filesystem", "mode", "try_create_dir", "min_rows_per_file", "max_rows_per_file", "num_rows_per_file")
_NO_PLACE = "takes no place to write to, or an object in its stead"
# What cannot be called, and why.
_REFUSED = {
    "write_datasink": _NO_PLACE,
    "write_turbopuffer": _NO_PLACE,
    "write_numpy": "writes one column, and a step has several",
    "write_images": "writes one column, and a step has several",
}
_EXTENSIONS = {"write_webdataset": "tar"}


def find_write_function(method: str, ours: Mapping[str, Any]) -> RayFunction:
    """Return the function.

    Args:
        method: what `output_write_method` names, none of `ours`.
        ours: names of our own ways to write.

    Raises:
        ConfigError: there is no such function, it takes no `offline.output`, or cannot hold recorded steps.
    """
    if "." in method:
        return described(method, import_target(method, METHOD), METHOD, num_before=1)
    import ray.data

    functions = {name: getattr(ray.data.Dataset, name) for name in dir(ray.data.Dataset) if name.startswith("write_")}
    known = [*ours, *(name for name in functions if name not in ours and name not in _REFUSED)]
    if method not in functions or method in _REFUSED:
        what = f"{method} of ray.data {_REFUSED[method]}" if method in _REFUSED else "there is no such way to write"
        expected = f"{list_names(known, method)}; or package.module.function of your own, which takes a Ray data set"
        raise ConfigError([Problem(what, METHOD, method, expected, nearest_match(method, known))])
    is_of_files = "filename_provider" in inspect.signature(functions[method]).parameters
    return described(method, functions[method], METHOD, _GIVEN if is_of_files else (), is_of_files, num_before=1)


def check_write_function(config: OfflineConfig, found: RayFunction) -> None:
    """Refuse arguments that the function does not take; raises `ConfigError`."""
    given, known = config.output_write_method_kwargs, [COLUMNS, *found.options]
    problems = [
        Problem(f"{found.name} has no option {name}", KWARGS, str(value), list_names(known), nearest_match(name, known))
        for name, value in given.items()
        if name not in known and (not found.is_open or name in _GIVEN)
    ]
    if found.name == "write_webdataset" and "encoder" not in given:
        what = "write_webdataset writes files that are named by their endings, and columns of steps have none"
        expected = "encoder: {_target_: package.module.function, _partial_: true}, which makes bytes of a row"
        problems.append(Problem(what, f"{KWARGS}.encoder", expected=expected))
    columns = given.get(COLUMNS, [])
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        problems.append(Problem("columns are names", f"{KWARGS}.{COLUMNS}", str(columns), "[eps_id, t, obs, ...]"))
    problems = problems or find_argument_faults(found, given, KWARGS)
    if problems:
        raise ConfigError(problems)


def extension_of(found: RayFunction) -> str:
    """Return how the names of files that a function writes end, without the dot."""
    return _EXTENSIONS.get(found.name, found.name.removeprefix("write_"))


_TEXT_EXTENSIONS = {"gzip": ".gz", "bz2": ".bz2"}
_DEFAULT_COMPRESSION = "zstd"
_DEFAULT_PACKED = frozenset(OfflineConfig().output_compress_columns)
_PACKED = "offline.output_compress_columns"


class OutputFormat(ABC):
    """One way to write: turns tables into the bytes of a file. A new one is a subclass and a line in `OUTPUT_FORMATS`.

    Args:
        config: the `offline` block.
        schema: of the tables.
        stream: an open file.

    Attributes:
        extension: of files, without the first dot.
        packed_extensions: compression of whole files -> what it adds to their names.
        compressions: that can be asked for.
        has_lists: columns may be lists, so that a row may be an episode, and are compressed one by one.
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
        """Return the names that `output_write_method_kwargs` may have."""

    @abstractmethod
    def write(self, table: pa.Table) -> None:
        """Write rows."""

    @abstractmethod
    def close(self) -> None:
        """Write what ends the file."""


class ParquetOutput(OutputFormat):
    """Parquet, a row group a table."""

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
    parts = column.split("/")
    return parts[2] if parts[0] == AGENTS and len(parts) > 2 else parts[0]


class TextOutput(OutputFormat):
    """Lines of text, the whole file compressed or not."""

    packed_extensions = _TEXT_EXTENSIONS
    compressions = tuple(_TEXT_EXTENSIONS)

    def __init__(self, config: OfflineConfig, schema: pa.Schema, stream: Any) -> None:
        self._options = dict(config.output_write_method_kwargs)
        compression = self._options.pop("compression", None)
        self._stream = stream if compression is None else pa.CompressedOutputStream(stream, compression)

    def close(self) -> None:
        """End the compression; nothing else ends such a file."""
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
        """Write rows."""
        write_json_rows(table, self._stream)


class CsvOutput(TextOutput):
    """CSV, with one header a file."""

    extension = "csv"
    _is_first = True

    @classmethod
    def options(cls) -> Collection[str]:
        return {"compression", "include_header", "delimiter", "quoting_style", "eol", "batch_size"}

    def write(self, table: pa.Table) -> None:
        """Write rows."""
        has_header = self._is_first and self._options.get("include_header", True)
        write_csv_rows(table, self._stream, self._options | {"include_header": has_header})
        self._is_first = False


# `offline.output_write_method` -> its class.
OUTPUT_FORMATS: Mapping[str, type[OutputFormat]] = {
    "write_parquet": ParquetOutput,
    "write_json": JsonOutput,
    "write_csv": CsvOutput,
}


def output_format(config: OfflineConfig) -> type[OutputFormat]:
    """Return what `output_write_method` names, which `check_output_options` has found to be there."""
    return OUTPUT_FORMATS[config.output_write_method]


def write_function(config: OfflineConfig) -> RayFunction | None:
    """Return the function that writes; None: one of `OUTPUT_FORMATS` does. Raises `ConfigError` if there is none."""
    method = config.output_write_method
    return None if method in OUTPUT_FORMATS else find_write_function(method, OUTPUT_FORMATS)


def file_extension(config: OfflineConfig) -> str:
    """Return how the names of files end, without the first dot."""
    function = write_function(config)
    if function is not None:
        return extension_of(function)
    found = output_format(config)
    return found.extension + found.packed_extensions.get(str(_compression(config)), "")


# --- checks ---------------------------------------------------------------------------------------


def check_output_options(config: OfflineConfig) -> None:
    """Refuse options that are not known, have no effect, or do not work; raises `ConfigError`."""
    if config.output_episode_format != "columns" and not config.output_write_episodes:
        what = "offline.output_episode_format is of rows that are episodes, and rows are steps"
        expected = "columns, or offline.output_write_episodes=true"
        raise ConfigError([Problem(what, "offline.output_episode_format", config.output_episode_format, expected)])
    function, method = write_function(config), config.output_write_method
    if config.output_write_episodes and (function is not None or not output_format(config).has_lists):
        what, able = f"{method} writes tables only", [name for name, one in OUTPUT_FORMATS.items() if one.has_lists]
        expected = f"{', '.join(able)}, or offline.output_write_episodes=false"
        raise ConfigError([Problem(what, METHOD, method, expected)])
    if function is not None:
        check_write_function(config, function)
        if config.output_run_folders and not function.is_of_files:
            what = f"{method} writes no files, of which offline.output_run_folders is"
            raise ConfigError([Problem(what, "offline.output_run_folders", "true", "false")])
        return
    found = output_format(config)
    problems = [*_find_unknown(config, found), *_find_compression_fault(config, found)]
    problems = problems or _find_fault(config)
    if problems:
        raise ConfigError(problems)


def check_env_episode_options(config: OfflineConfig) -> None:
    """Refuse what env episodes of several agents are not written as; raises `ConfigError`."""
    options = {
        "output_write_episodes": ("true", config.output_write_episodes),
        "output_episode_format": ("columns", config.output_episode_format == "columns"),
    }
    problems = [
        Problem(
            "env episodes of several agents are recorded a row each",
            f"offline.{name}",
            str(getattr(config, name)).lower(),
            f"{expected}; then python -m runner convert",
        )
        for name, (expected, is_so) in options.items()
        if not is_so
    ]
    if problems:
        raise ConfigError(problems)


def check_columns(config: OfflineConfig, layout: Layout) -> None:
    """Refuse names of columns to compress that the data do not have; raises `ConfigError`."""
    if config.output_write_method not in OUTPUT_FORMATS:
        return
    known, compression = {*layout.columns, "new_obs"}, _compression(config)
    named = {name: _PACKED for name in config.output_compress_columns if name not in _DEFAULT_PACKED}
    named |= {name: f"{KWARGS}.compression" for name in compression} if isinstance(compression, Mapping) else {}
    problems = [
        Problem("there is no such column", where, name, list_names(known), nearest_match(name, known))
        for name, where in named.items()
        if name not in known
    ]
    if problems:
        raise ConfigError(problems)


def _compression(config: OfflineConfig) -> Any:
    return config.output_write_method_kwargs.get("compression")


def _find_unknown(config: OfflineConfig, found: type[OutputFormat]) -> list[Problem]:
    known, method = found.options(), config.output_write_method
    return [
        Problem(f"{method} has no option {name}", KWARGS, str(value), list_names(known), nearest_match(name, known))
        for name, value in config.output_write_method_kwargs.items()
        if name not in known
    ]


def _find_compression_fault(config: OfflineConfig, found: type[OutputFormat]) -> list[Problem]:
    """Return an unknown compression, and `output_compress_columns` where it would have no effect."""
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
        problems.append(Problem(what, _PACKED, str(packed), "leave it out"))
    elif given == "none" or isinstance(given, Mapping):
        what = f"{KWARGS}.compression tells the compression of all columns"
        problems.append(Problem(what, _PACKED, str(packed), "leave it out"))
    return problems


def _find_fault(config: OfflineConfig) -> list[Problem]:
    """Return what writing a row to memory says of the options' values, before anything is recorded."""
    table = pa.table({"obs": [0.0]})
    try:
        output = output_format(config)(config, table.schema, pa.BufferOutputStream())
        output.write(table)
        output.close()
    except (TypeError, ValueError, AttributeError, OSError, pa.ArrowException) as error:
        what = f"{config.output_write_method} does not work with these options: {first_line(error)}"
        return [Problem(what, KWARGS, str(config.output_write_method_kwargs))]
    return []
