"""JSON lines and CSV as Arrow tables, a block of text at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from runner.offline.files.data_error import DataError, DataLocation, data_error, first_line
from runner.offline.files.file_kinds import CSV, JSON, FileKind
from runner.offline.files.input_files import InputFiles, check_kind
from runner.offline.files.json_lines import CheckedLines, find_damaged_line
from runner.offline.files.raw_rows import RawTable
from runner.offline.files.text_blocks import Utf8Stream, read_ahead, record_end, whole_lines

_BLOCK_BYTES = 2**23
_NUM_AHEAD = 15
# Unlike pyarrow's own: NaN is a number, of which rewards are checked and observations may have some.
_NULL_VALUES = ("", "null", "NULL", "None", "NA", "N/A", "n/a", "#N/A")
_CSV_READ = ("skip_rows", "skip_rows_after_names", "column_names", "autogenerate_column_names", "encoding")
_CSV_PARSE = ("delimiter", "quote_char", "double_quote", "escape_char", "newlines_in_values", "ignore_empty_lines")
_CSV_CONVERT = ("null_values", "true_values", "false_values", "decimal_point", "quoted_strings_can_be_null")
_ROW = re.compile(r"Row #(\d+):")
# Of `offline.input_read_method_kwargs`, by kind of file.
TEXT_OPTIONS: Mapping[FileKind, tuple[str, ...]] = {
    CSV: ("block_size", *_CSV_READ, *_CSV_PARSE, *_CSV_CONVERT),
    JSON: ("block_size",),
}


class TextReader:
    """JSON lines or CSV; the first block of the first file says which type a column has.

    Args:
        files: of one of these kinds.
        options: the given options, of `TEXT_OPTIONS`.
        row_filter: a row that is not true there is left out.
    """

    def __init__(self, files: InputFiles, options: Mapping[str, Any], row_filter: Any = None) -> None:
        self.files = files
        self.row_filter = row_filter
        self._options = dict(options)
        first = next(self._stream(files.paths[0], None, None), None)
        if first is None:
            raise data_error("there is no row in this file", DataLocation(files.paths[0]))
        self.schema = _widened(first.schema)

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[RawTable]:
        """See `RawReader`; columns that are not asked for are not converted from text."""
        for path in self.files.paths:
            row = 0
            for batch in self._stream(path, self.schema, columns if self.row_filter is None else None):
                table = pa.Table.from_batches([batch])
                place = DataLocation(path, row)
                row += batch.num_rows
                if self.row_filter is not None:
                    table, place = table.filter(self.row_filter), DataLocation(path)  # nobody knows where a row was
                if columns is not None:
                    table = table.select([name for name in table.column_names if name in columns])
                yield table, place

    def _stream(self, path: str, schema: pa.Schema | None, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        check_kind(self.files, path)
        try:
            with self.files.open_stream(path) as stream:
                batches = self._json_batches if self.files.kind == JSON else self._csv_batches
                yield from batches(stream, path, schema, columns)
        except (pa.ArrowException, OSError, UnicodeDecodeError, TypeError) as error:
            raise self._failure(path, error) from None

    def _json_batches(
        self, stream: Any, path: str, schema: pa.Schema | None, columns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        """Parse block by block: a thread of pyarrow that reads ahead through Python aborts the process at its exit."""
        wanted = schema if schema is None or columns is None else _selected(schema, columns)
        lines = CheckedLines(stream, DataLocation(path, 0, unit="line"))
        num_rows = 0
        for block in whole_lines(lines, self._options.get("block_size", _BLOCK_BYTES)):
            if block.isspace():
                continue
            table = pa.json.read_json(
                pa.BufferReader(block),
                pa.json.ReadOptions(block_size=len(block)),
                pa.json.ParseOptions(
                    explicit_schema=wanted, unexpected_field_behavior="infer" if columns is None else "ignore"
                ),
            )
            if num_rows == 0:
                _check_names(table.schema, path)
                wanted = table.schema if wanted is None else wanted
            num_rows += table.num_rows
            yield from table.combine_chunks().to_batches()
        if num_rows == 0:
            raise data_error("a JSON file cannot be read: there is no row in it", DataLocation(path))

    def _csv_batches(
        self, stream: Any, path: str, schema: pa.Schema | None, columns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        """Parse block by block, for the reason given in `_json_batches`."""
        read, parse, convert = (
            {name: value for name, value in self._options.items() if name in known}
            for known in (_CSV_READ, _CSV_PARSE, _CSV_CONVERT)
        )
        convert = {"strings_can_be_null": True, "null_values": _NULL_VALUES, **convert}
        if schema is not None:
            types = schema if columns is None else _selected(schema, columns)
            convert["column_types"] = {field.name: field.type for field in types}
        text = Utf8Stream(stream, read.pop("encoding", "utf8"))
        num_lines = 0
        blocks = whole_lines(text, self._options.get("block_size", _BLOCK_BYTES), record_end(parse))
        for block in read_ahead(blocks, _NUM_AHEAD):
            table = _parse_csv(block, read, parse, convert, num_lines)
            if num_lines == 0:
                _check_names(table.schema, path)
                read = {"column_names": table.column_names}
                convert["column_types"] = {field.name: field.type for field in table.schema}
                if columns is not None:
                    convert["include_columns"] = [name for name in table.column_names if name in columns]
            num_lines += block.count(b"\n") + (not block.endswith(b"\n"))
            yield from table.combine_chunks().to_batches()
        if num_lines == 0:
            raise data_error("a CSV file cannot be read: there is no row in it", DataLocation(path))

    def _failure(self, path: str, error: Exception) -> DataError:
        """Return the error with the line where a JSON file is damaged, which pyarrow counts anew in every block."""
        kind = self.files.kind
        reason = "there is no row in it" if "Empty" in str(error) else first_line(error)
        if kind == JSON and isinstance(error, pa.ArrowInvalid):
            with self.files.open_stream(path) as stream:
                found = find_damaged_line(stream, DataLocation(path, 0, unit="line"))
            if found is not None:
                return found
        return data_error(f"a {kind.title} file cannot be read: {reason}", DataLocation(path))


def _parse_csv(
    block: bytes, read: Mapping[str, Any], parse: Mapping[str, Any], convert: Mapping[str, Any], num_lines: int
) -> pa.Table:
    """Return the rows of a block that follows `num_lines` lines, which count in the row number of an error."""
    try:
        return pa.csv.read_csv(
            pa.BufferReader(block),
            pa.csv.ReadOptions(block_size=len(block), use_threads=False, **read),  # with threads, errors have no number
            pa.csv.ParseOptions(**parse),
            pa.csv.ConvertOptions(**convert),
        )
    except pa.ArrowInvalid as error:
        raise pa.ArrowInvalid(_ROW.sub(lambda row: f"Row #{int(row[1]) + num_lines}:", str(error), count=1)) from None


def _check_names(schema: pa.Schema, path: str) -> None:
    """Refuse columns whose names or texts are no text."""
    try:
        names = schema.names
    except UnicodeDecodeError:
        raise data_error("the names of the columns are no UTF-8 text", DataLocation(path)) from None
    for name in names:
        if pa.types.is_binary(schema.field(schema.get_field_index(name)).type):
            raise data_error("a column is no UTF-8 text", DataLocation(path, column=name))


def _selected(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name in columns])


def _widened(schema: pa.Schema) -> pa.Schema:
    """Return integers that may become floats further on: a column of 0, 1, 0.5 starts like one of integers."""
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
