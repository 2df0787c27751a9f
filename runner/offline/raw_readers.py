"""Raw rows of files as Arrow tables: in the order of the files, a bounded number of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.json
import pyarrow.parquet as pq

from runner.config.errors import ConfigError, Problem, list_names, nearest_match
from runner.config.offline import OfflineConfig
from runner.offline.foreign import sample_batches
from runner.offline.foreign.data_error import DataError, Place, data_error
from runner.offline.input_files import InputFiles, input_paths

MAX_TABLE_BYTES = 2**25
_TEXT_BLOCK_BYTES = 2**23
_MAX_ROWS = 2**16
_NUM_THREADS = 8

RawTable = tuple[pa.Table, Place]


class RawReader(Protocol):
    """A stream of raw rows."""

    @property
    def schema(self) -> pa.Schema:
        """Of the first rows; files that hold the same kind of data may differ in detail."""

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[RawTable]:
        """The rows, table by table, each with its file and the number of its first row in it."""


def read_parquet_schemas(files: InputFiles) -> list[pq.FileMetaData]:
    """The footers of all files.

    Raises:
        DataError: all files that are damaged.
    """

    def read(path: str) -> pq.FileMetaData | Problem:
        try:
            with files.filesystem.open_input_file(path) as file:
                return pq.read_metadata(file)
        except (pa.ArrowException, OSError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            return Problem(f"a Parquet file is damaged or truncated: {reason}", path)

    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        found = list(pool.map(read, files.paths))
    problems = [result for result in found if isinstance(result, Problem)]
    if problems:
        raise DataError(problems)
    return found


@dataclass(frozen=True)
class ParquetReader:
    """Parquet files, row group by row group; columns and row filter are pushed down."""

    files: InputFiles
    schema: pa.Schema
    row_filter: ds.Expression | None = None

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[RawTable]:
        """See `RawReader`."""
        for path in self.files.paths:
            place = Place(path, 0)
            try:
                yield from self._tables_of(path, columns, place)
            except (pa.ArrowException, OSError) as error:
                raise data_error(f"a Parquet file is damaged: {error}", place) from None

    def _tables_of(self, path: str, columns: Sequence[str] | None, place: Place) -> Iterator[RawTable]:
        fragment = ds.ParquetFileFormat().make_fragment(path, self.files.filesystem)
        names = fragment.physical_schema.names
        projection = {name: ds.field(name) for name in names if columns is None or name in columns}
        row = 0
        for group in fragment.split_by_row_group(self.row_filter):
            info = group.row_groups[0]
            per_row = max(1, info.total_byte_size // max(1, info.num_rows))
            size = max(1, min(info.num_rows, MAX_TABLE_BYTES // per_row, _MAX_ROWS))
            scanner = group.scanner(
                columns=projection,
                filter=self.row_filter,
                batch_size=size,
                batch_readahead=1,
                fragment_readahead=1,
            )
            for batch in scanner.to_batches():
                if batch.num_rows:
                    # After a filter nobody knows where a row was.
                    yield pa.Table.from_batches([batch]), place.at(row) if self.row_filter is None else Place(path)
                row += batch.num_rows

    def column_bytes(self, column: str) -> int:
        """Compressed bytes of a column and its leaves, in all files."""
        total = 0
        for metadata in read_parquet_schemas(self.files):
            for group in range(metadata.num_row_groups):
                info = metadata.row_group(group)
                for index in range(info.num_columns):
                    chunk = info.column(index)
                    if chunk.path_in_schema == column or chunk.path_in_schema.startswith(f"{column}."):
                        total += int(chunk.total_compressed_size)
        return total


class TextReader:
    """JSON lines or CSV; the first block of the first file says which type a column has."""

    def __init__(self, files: InputFiles, options: Mapping[str, Any], row_filter: Any = None) -> None:
        self.files = files
        self.row_filter = row_filter
        self._options = dict(options)
        first = next(self._stream(files.paths[0], None), None)
        if first is None:
            raise data_error("there is no row in this file", Place(files.paths[0]))
        self.schema = _widened(first.schema)

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[RawTable]:
        """See `RawReader`."""
        for path in self.files.paths:
            row = 0
            for batch in self._stream(path, self.schema):
                table = pa.Table.from_batches([batch])
                row += batch.num_rows
                place = Place(path, row - batch.num_rows)
                if self.row_filter is not None:
                    table, place = table.filter(self.row_filter), Place(path)
                if columns is not None:
                    table = table.select([name for name in table.column_names if name in columns])
                yield table, place

    def _stream(self, path: str, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        place = Place(path)
        try:
            with self.files.filesystem.open_input_stream(path) as stream:
                yield from self._open(stream, schema)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            what = f"a {self.files.kind.upper()} file cannot be read: {next(iter(str(error).splitlines()), '')}"
            raise data_error(what, place) from None

    def _open(self, stream: Any, schema: pa.Schema | None) -> Any:
        types = {} if schema is None else {field.name: field.type for field in schema}
        if self.files.kind == "csv":
            read, parse, convert = (
                {name: value for name, value in self._options.items() if name in known}
                for known in (_names_of(pa.csv.ReadOptions), _names_of(pa.csv.ParseOptions), _CSV_CONVERT)
            )
            return pa.csv.open_csv(
                stream,
                pa.csv.ReadOptions(**{"block_size": _TEXT_BLOCK_BYTES, **read}),
                pa.csv.ParseOptions(**parse),
                pa.csv.ConvertOptions(**{"column_types": types, "strings_can_be_null": True, **convert}),
            )
        explicit = None if schema is None else schema
        return pa.json.open_json(
            stream,
            pa.json.ReadOptions(use_threads=True, block_size=_TEXT_BLOCK_BYTES),
            pa.json.ParseOptions(explicit_schema=explicit, unexpected_field_behavior="infer"),
        )


_CSV_CONVERT = frozenset({"null_values", "true_values", "false_values", "decimal_point", "include_columns"})


def _names_of(options: type) -> set[str]:
    return {name for name in dir(options) if not name.startswith("_")}


def _widened(schema: pa.Schema) -> pa.Schema:
    """Integers that may become floats further on: a column of 0, 1, 0.5 starts like one of integers."""
    integers = {"eps_id", "episode_id", "t", "actions", "action", "agent_id"}
    fields = []
    for field in schema:
        fields.append(field if field.name in integers else field.with_type(_widened_type(field.type)))
    return pa.schema(fields)


def _widened_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_integer(type_):
        return pa.float64()
    if pa.types.is_list(type_):
        return pa.list_(_widened_type(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_widened_type(field.type)) for field in type_])
    return type_


class SampleBatchReader:
    """JSON lines of SampleBatches."""

    def __init__(self, files: InputFiles) -> None:
        self.files = files
        first = next(self.tables(), None)
        if first is None:
            raise data_error("there is no line in this file", Place(files.paths[0]))
        self.schema = first[0].schema

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[RawTable]:
        """See `RawReader`."""
        for path in self.files.paths:
            with self.files.filesystem.open_input_stream(path) as stream:
                for place, table in sample_batches.read_tables(stream, Place(path, 0, unit="line")):
                    yield table, place


class RayReader:
    """Whatever a `ray.data.read_...` function reads, in order."""

    def __init__(self, config: OfflineConfig) -> None:
        self._config = config
        self._dataset = read_with_ray(config, config.input_read_method, input_paths(config), {})
        batch = next(iter(self._batches(1)), None)
        if batch is None:
            raise data_error("there is no row in these data", Place(str(config.input_)))
        self.schema = batch.schema

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[RawTable]:
        """See `RawReader`."""
        row = 0
        for table in self._batches(4096):
            if columns is not None:
                table = table.select([name for name in table.column_names if name in columns])
            yield table, Place(str(self._config.input_), row)
            row += table.num_rows

    def _batches(self, size: int) -> Any:
        return self._dataset.iter_batches(batch_size=size, batch_format="pyarrow", prefetch_batches=1)

    def __getstate__(self) -> dict[str, Any]:
        return {"_config": self._config, "_dataset": None, "schema": self.schema}


def read_with_ray(config: OfflineConfig, method: str, paths: Sequence[str], extra: Mapping[str, Any]) -> Any:
    """`ray.data.<method>(paths, ...)` with the keyword arguments of the configuration.

    Raises:
        ConfigError: there is no such function, or it does not take these arguments.
    """
    import ray.data

    read = _find_method(ray.data, method)
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    kwargs = dict(extra) | {name: v for name, v in config.input_read_method_kwargs.items() if name not in _OURS}
    try:
        return read(list(paths), **kwargs)
    except TypeError as error:
        where = "offline.input_read_method_kwargs"
        raise ConfigError([Problem(f"{method}: {error}", where, str(config.input_read_method_kwargs))]) from None
    except FileNotFoundError as error:
        raise DataError([Problem(f"{method}: {error}", "offline.input_", str(config.input_))]) from None


_OURS = ("columns", "filter")


def _find_method(module: Any, method: str) -> Callable[..., Any]:
    known = [name for name in dir(module) if name.startswith("read_")]
    if method not in known:
        where = "offline.input_read_method"
        what = f"ray.data has no function {method}"
        raise ConfigError([Problem(what, where, method, list_names(known, method), nearest_match(method, known))])
    read: Callable[..., Any] = getattr(module, method)
    return read
