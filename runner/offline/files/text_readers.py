"""Read JSON lines and CSV as Arrow tables, one block of text at a time.

Lines are checked first: pyarrow 25 ends the process at a file of `null`, reads a `null` among objects as a row without
values, and overflows the stack on deeply nested lists. Its read-ahead thread aborts the process at exit if it reads
from a Python stream.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from runner.offline.files.data_error import DataError, DataLocation, data_error, first_line
from runner.offline.files.input_files import CSV, JSON, ByteStream, FileKind, InputFiles, check_kind
from runner.offline.files.raw_rows import OPTIONAL_COLUMNS, RawTable, differing_columns, narrowed

_NEWLINE, _OBJECT = ord("\n"), ord("{")
_BOM = b"\xef\xbb\xbf"
_MAX_DEPTH = 1000
_SHOWN = 80
# +1 where a list or an object opens, -1 where one closes.
_DEPTH_STEP = np.zeros(256, np.int8)
_DEPTH_STEP[list(b"[{")] = 1
_DEPTH_STEP[list(b"]}")] = -1


class CheckedLines:
    """Stream of bytes that checks each line.

    Args:
        stream: open file.
        place: location of the file, for messages.

    Raises:
        DataError: in `read`: a line is not a JSON object or not UTF-8. Names the line.
    """

    def __init__(self, stream: ByteStream, place: DataLocation) -> None:
        self._stream, self._place = stream, place
        self._tail = b""  # incomplete last line
        self._num_lines = 0

    def read(self, size: int) -> bytes:
        """Return the next bytes, unchanged."""
        data = self._stream.read(size)
        held = self._tail + data
        if self._num_lines == 0:
            held = held.removeprefix(_BOM)  # optional byte order mark
        end = held.rfind(b"\n") + 1 if data else len(held)
        if end:
            self._check(held[:end])
        self._tail = held[end:]
        return data

    def _check(self, lines: bytes) -> None:
        values = np.frombuffer(lines, np.uint8)
        ends = np.flatnonzero(values == _NEWLINE)
        starts = np.concatenate(([0], ends + 1))
        starts = starts[starts < len(values)]
        for line in np.flatnonzero(values[starts] != _OBJECT).tolist():
            text = lines[starts[line] :].partition(b"\n")[0].strip()
            if text and not text.startswith(b"{"):
                raise self._line_error("this line is not a JSON object ({...})", line, text)
        if not lines.isascii():
            self._check_text(lines)
        long = np.flatnonzero(np.diff(np.append(starts, len(values))) > _MAX_DEPTH)
        for line in long.tolist():
            line_bytes = values[starts[line] :][: len(lines[starts[line] :].partition(b"\n")[0])]
            if np.cumsum(_DEPTH_STEP[line_bytes], dtype=np.int32).max() > _MAX_DEPTH:
                raise self._line_error(f"a line nests deeper than {_MAX_DEPTH} levels", line, line_bytes.tobytes())
        self._num_lines += len(ends)

    def _check_text(self, lines: bytes) -> None:
        try:
            lines.decode()
        except UnicodeDecodeError as error:
            line = lines.count(b"\n", 0, error.start)
            raise self._line_error("this line is not valid UTF-8", line, lines.split(b"\n")[line]) from None

    def _line_error(self, what: str, line: int, text: bytes) -> DataError:
        return data_error(what, self._place.at(self._num_lines + line), got=_shown(text))


def find_damaged_line(stream: ByteStream, place: DataLocation) -> DataError | None:
    """Return the error of the first line that is not a JSON object, or None. Slow, as it parses with Python."""
    number = 0
    held = b""
    while data := stream.read(2**20):
        *lines, held = (held + data).split(b"\n")
        for line in lines:
            if (error := _damage(line, place.at(number), "")) is not None:
                return error
            number += 1
    return _damage(held, place.at(number), "; the file is truncated")


def _damage(line: bytes, place: DataLocation, hint: str) -> DataError | None:
    text = line.strip().removeprefix(_BOM)
    if not text:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return data_error(f"this line is not valid JSON: {error!s:.200}{hint}", place, got=_shown(text))
    if isinstance(value, dict):
        return None
    return data_error("this line is not a JSON object ({...})", place, got=_shown(text))


def _shown(text: bytes) -> str:
    shown = text.decode("utf-8", "backslashreplace")
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."


class Utf8Stream:
    """Stream that re-encodes text as UTF-8.

    Args:
        stream: open file.
        encoding: encoding of the file.

    Raises:
        UnicodeDecodeError: in `read`: the file has another encoding.
    """

    def __init__(self, stream: ByteStream, encoding: str) -> None:
        self._stream = stream
        is_utf8 = codecs.lookup(encoding).name == "utf-8"
        self._decoder = None if is_utf8 else codecs.getincrementaldecoder(encoding)()

    def read(self, size: int) -> bytes:
        """Return about `size` bytes, or none at the end."""
        while data := self._stream.read(size):
            if self._decoder is None:
                return data
            if text := self._decoder.decode(data):
                return text.encode()
        return b"" if self._decoder is None else self._decoder.decode(b"", final=True).encode()


def _last_line_end(block: bytes) -> int:
    return block.rfind(b"\n") + 1


def whole_lines(stream: ByteStream, size: int, end_of: Callable[[bytes], int] = _last_line_end) -> Iterator[bytes]:
    """Yield blocks of about `size` bytes that end at the end of a line or of the stream.

    Args:
        stream: stream of text.
        size: bytes per block.
        end_of: returns the end of the last complete record in a block.
    """
    tail, is_over = b"", False
    while not is_over:
        parts, missing = [tail], size
        while missing > 0 and (data := stream.read(missing)):
            parts.append(data)
            missing -= len(data)
        is_over = missing > 0
        block = b"".join(parts)
        end = len(block) if is_over else end_of(block)
        tail = block[end:]
        if end:
            yield block[:end]


def read_ahead(blocks: Iterator[bytes], number: int) -> Iterator[bytes]:
    """Yield each block after `number` more were read, so that a file that unpacks to too much fails early."""
    waiting: deque[bytes] = deque()
    for block in blocks:
        waiting.append(block)
        if len(waiting) > number:
            yield waiting.popleft()
    yield from waiting


def record_end(parse: Mapping[str, Any]) -> Callable[[bytes], int]:
    """Return `end_of` for a CSV file with these pyarrow options; quoted values may contain newlines."""
    quote = parse.get("quote_char", '"')
    if not parse.get("newlines_in_values") or not quote:
        return _last_line_end
    escape = parse.get("escape_char")
    escaped = re.compile(re.escape(escape.encode()) + b".", re.DOTALL) if escape else None

    def find(block: bytes) -> int:
        if escaped is not None:
            block = escaped.sub(b"xx", block)
        values = np.frombuffer(block, np.uint8)
        is_quoted = np.cumsum(values == ord(quote), dtype=np.uint8) & 1
        ends = np.flatnonzero((values == _NEWLINE) & (is_quoted == 0))
        return int(ends[-1]) + 1 if len(ends) else 0

    return find


_BLOCK_BYTES = 2**23
_NUM_AHEAD = 15
# Unlike pyarrow's default, NaN is a number: rewards are checked for it, and observations may contain it.
_NULL_VALUES = ("", "null", "NULL", "None", "NA", "N/A", "n/a", "#N/A")
_CSV_READ = ("skip_rows", "skip_rows_after_names", "column_names", "autogenerate_column_names", "encoding")
_CSV_PARSE = ("delimiter", "quote_char", "double_quote", "escape_char", "newlines_in_values", "ignore_empty_lines")
_CSV_CONVERT = ("null_values", "true_values", "false_values", "decimal_point", "quoted_strings_can_be_null")
_ROW = re.compile(r"Row #(\d+):")
# Options in `offline.input_read_method_kwargs`, by kind of file.
TEXT_OPTIONS: Mapping[FileKind, tuple[str, ...]] = {
    CSV: ("block_size", *_CSV_READ, *_CSV_PARSE, *_CSV_CONVERT),
    JSON: ("block_size",),
}


class TextReader:
    """Reader of JSON lines or CSV. The first block of the first file determines the column types.

    Args:
        files: files of one of these kinds.
        options: options from `TEXT_OPTIONS`.
        integers: columns that keep their integers. Other integers become floats, because a column 0, 1, 0.5 starts
            like integers.

    Attributes:
        row_filter: only rows for which it is true are returned.
    """

    def __init__(self, files: InputFiles, options: Mapping[str, Any], integers: Collection[str] = ()) -> None:
        self.files = files
        self.row_filter: Any = None
        self._options = dict(options)
        first = next(self._stream(files.paths[0], None, None), None)
        if first is None:
            raise data_error("this file does not contain any rows", DataLocation(files.paths[0]))
        # A column of CSV that is empty so far may contain text later.
        self.schema = _widened(first.schema, integers, pa.string() if files.kind == CSV else pa.null())

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[RawTable]:
        """See `RawReader`. Only the requested columns are converted from text.

        Raises:
            DataError: a file is damaged, or lacks columns of the first one.
        """
        wanted = [name for name in self.schema.names if columns is None or name in columns]
        for path in self.files.paths:
            row = 0
            for batch in self._stream(path, self.schema, columns if self.row_filter is None else None):
                table = pa.Table.from_batches([batch])
                missing = set(wanted).difference(table.column_names, OPTIONAL_COLUMNS)
                if missing:
                    raise differing_columns(missing, path, self.files.paths[0], self.schema.names)
                yield narrowed(table, DataLocation(path, row), self.row_filter, columns)
                row += batch.num_rows

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
        """Parse block by block: the read-ahead thread of pyarrow aborts the process at exit."""
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
            raise data_error("a JSON file cannot be read: it does not contain any rows", DataLocation(path))

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
            raise data_error("a CSV file cannot be read: it does not contain any rows", DataLocation(path))

    def _failure(self, path: str, error: Exception) -> DataError:
        """Return the error with the line of a damaged JSON file; pyarrow restarts its line count in every block."""
        kind = self.files.kind
        reason = "it does not contain any rows" if "Empty" in str(error) else first_line(error)
        if kind == JSON and isinstance(error, pa.ArrowInvalid):
            with self.files.open_stream(path) as stream:
                found = find_damaged_line(stream, DataLocation(path, 0, unit="line"))
            if found is not None:
                return found
        return data_error(f"a {kind.title} file cannot be read: {reason}", DataLocation(path))


def _parse_csv(
    block: bytes, read: Mapping[str, Any], parse: Mapping[str, Any], convert: Mapping[str, Any], num_lines: int
) -> pa.Table:
    """Parse a block that follows `num_lines` lines, and correct row numbers in errors by that many."""
    try:
        return pa.csv.read_csv(
            pa.BufferReader(block),
            pa.csv.ReadOptions(block_size=len(block), use_threads=False, **read),  # threaded errors lack row numbers
            pa.csv.ParseOptions(**parse),
            pa.csv.ConvertOptions(**convert),
        )
    except pa.ArrowInvalid as error:
        raise pa.ArrowInvalid(_ROW.sub(lambda row: f"Row #{int(row[1]) + num_lines}:", str(error), count=1)) from None


def _check_names(schema: pa.Schema, path: str) -> None:
    """Reject columns whose names or values are not UTF-8."""
    try:
        names = schema.names
    except UnicodeDecodeError:
        raise data_error("the names of the columns are not valid UTF-8", DataLocation(path)) from None
    for name in names:
        if pa.types.is_binary(schema.field(schema.get_field_index(name)).type):
            raise data_error("this column is not valid UTF-8 text", DataLocation(path, column=name))


def _selected(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name in columns])


def _widened(schema: pa.Schema, integers: Collection[str], empty: pa.DataType) -> pa.Schema:
    """Return the types of later rows: floats instead of integers that are not kept, and `empty` for empty columns."""

    def later_type(field: pa.Field) -> pa.DataType:
        if pa.types.is_null(field.type):
            return empty
        return field.type if field.name in integers else _widened_type(field.type)

    return pa.schema([field.with_type(later_type(field)) for field in schema])


def _widened_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_integer(type_):
        return pa.float64()
    if pa.types.is_list(type_):
        return pa.list_(_widened_type(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_widened_type(field.type)) for field in type_])
    return type_
