"""Read raw rows of Parquet files as Arrow tables of bounded size, in the order of the files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from runner.config.errors import Problem
from runner.offline.files.data_error import DataError, DataLocation, data_error, first_line
from runner.offline.files.input_files import InputFiles, check_kind, check_size
from runner.offline.files.raw_rows import RawTable

MAX_TABLE_BYTES = 2**25
_MAX_ROWS = 2**16
_NUM_THREADS = 8
_WIDTHS = {"BOOLEAN": 1, "INT64": 8, "DOUBLE": 8, "INT96": 12}  # bytes of a value


@dataclass(frozen=True)
class Footer:
    """Metadata from the footer of a Parquet file.

    Attributes:
        null_paths: paths of leaves with missing values, or in lists that are missing.
    """

    schema: pa.Schema
    num_rows: int
    null_paths: frozenset[str] = frozenset()

    @classmethod
    def of(cls, metadata: pq.FileMetaData) -> Footer:
        """Extract the needed fields from Parquet's metadata."""
        null_paths = set()
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            for index in range(group.num_columns):
                chunk = group.column(index)
                if chunk.statistics is not None and chunk.statistics.null_count:
                    null_paths.add(chunk.path_in_schema)
        return cls(metadata.schema.to_arrow_schema(), metadata.num_rows, frozenset(null_paths))


def read_footers(files: InputFiles) -> tuple[Footer, ...]:
    """Return the footers of all files.

    Raises:
        DataError: files are damaged; lists all of them.
    """

    def read(path: str) -> Footer | Problem:
        try:
            with files.filesystem.open_input_file(path) as file:
                return Footer.of(_checked(pq.read_metadata(file), path))
        except DataError as error:
            return error.problems[0]
        except (pa.ArrowException, OSError) as error:
            try:
                check_kind(files, path)
            except DataError as odd:
                return odd.problems[0]
            return Problem(f"a Parquet file is damaged or truncated: {first_line(error)}", path)

    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        found = list(pool.map(read, files.paths))
    problems = [result for result in found if isinstance(result, Problem)]
    if problems:
        raise DataError(problems)
    footers = [result for result in found if isinstance(result, Footer)]
    first = footers[0].schema  # equal schemas become one object: thousands of files have few different ones
    return tuple(
        replace(footer, schema=first) if footer.schema.equals(first, check_metadata=True) else footer
        for footer in footers
    )


def _checked(metadata: pq.FileMetaData, path: str) -> pq.FileMetaData:
    """Reject a file in which a row, or a column chunk, is far larger than its compressed size allows."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = [group.column(index) for index in range(group.num_columns)]
        packed = sum(chunk.total_compressed_size for chunk in chunks)
        check_size(decoded_bytes(group) // max(1, group.num_rows), packed, DataLocation(path))
        for chunk in chunks:
            place = DataLocation(path, column=chunk.path_in_schema)
            check_size(chunk.total_uncompressed_size, chunk.total_compressed_size, place)
    return metadata


def decoded_bytes(group: pq.RowGroupMetaData) -> int:
    """Return the size of a row group as arrays. One stored number can represent a million equal values."""
    total = 0
    for index in range(group.num_columns):
        chunk = group.column(index)
        total += max(int(chunk.total_uncompressed_size), int(chunk.num_values) * _WIDTHS.get(chunk.physical_type, 4))
    return total


def _fixed_list_sizes(type_: pa.DataType) -> set[int]:
    """Return the sizes of the fixed-size lists within a type."""
    fields = [type_.field(index) for index in range(type_.num_fields)]
    own = {type_.list_size} if pa.types.is_fixed_size_list(type_) else set()
    return own.union(*(_fixed_list_sizes(field.type) for field in fields))


@dataclass(frozen=True)
class ParquetReader:
    """Reader of Parquet files by row group, with column selection and row filter pushed down."""

    files: InputFiles
    footers: tuple[Footer, ...]
    row_filter: ds.Expression | None = None

    @cached_property
    def schema(self) -> pa.Schema:
        """Schema of the file with the most columns: only some files of a writer may have infos."""
        return max((footer.schema for footer in self.footers), key=lambda schema: len(schema.names))

    @property
    def num_rows(self) -> int:
        """Number of rows of all files, before the filter."""
        return sum(footer.num_rows for footer in self.footers)

    @cached_property
    def unreadable(self) -> Mapping[str, str]:
        """Columns of intact files that pyarrow cannot read -> reason."""
        null_paths = frozenset[str]().union(*(footer.null_paths for footer in self.footers))
        reasons = {}
        for field in self.schema:
            sizes = _fixed_list_sizes(field.type)
            if 0 in sizes:
                reasons[field.name] = "pyarrow cannot read lists of the fixed size 0 from Parquet"
            elif sizes and any(path.startswith(f"{field.name}.") for path in null_paths):
                reasons[field.name] = "pyarrow cannot read fixed-size lists with missing values from Parquet"
        return reasons

    def only(self, number: int) -> ParquetReader:
        """Return the reader of only the file with this number."""
        return replace(self, files=self.files.only(number), footers=(self.footers[number],))

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[RawTable]:
        for path in self.files.paths:
            place = DataLocation(path, 0)
            try:
                yield from self._tables_of(path, columns, place)
            except (pa.ArrowException, OSError) as error:
                raise data_error(f"a Parquet file is damaged: {first_line(error)}", place) from None

    def _tables_of(self, path: str, columns: Sequence[str] | None, place: DataLocation) -> Iterator[RawTable]:
        fragment = ds.ParquetFileFormat().make_fragment(path, self.files.filesystem)
        names = fragment.physical_schema.names
        projection = {name: ds.field(name) for name in names if columns is None or name in columns}
        row = 0
        for group in fragment.split_by_row_group(self.row_filter):
            info = group.row_groups[0]
            per_row = max(1, decoded_bytes(fragment.metadata.row_group(info.id)) // max(1, info.num_rows))
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
                    # A filter hides the original row numbers.
                    yield (
                        pa.Table.from_batches([batch]),
                        place.at(row) if self.row_filter is None else DataLocation(path),
                    )
                row += batch.num_rows
