"""JSON lines are looked at wherever the blocks of text are cut, and pyarrow gets the bytes as they are."""

from __future__ import annotations

import io
import json
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.config.offline import OfflineConfig
from runner.offline.files.data_error import DataError, DataLocation
from runner.offline.files.text_readers import CheckedLines, find_damaged_line, whole_lines
from runner.offline.reading.source import open_source

OBJECT = st.fixed_dictionaries({"text": st.text(max_size=5), "list": st.lists(st.integers(0, 9), max_size=3)})
PLACE = DataLocation("file", 0, unit="line")


def lines_of(values: list[object], ends: str = "\n", ascii_only: bool = True) -> bytes:
    return ends.join(json.dumps(value, ensure_ascii=ascii_only) for value in values).encode("utf-8", "surrogatepass")


def read_all(content: bytes, size: int) -> bytes:
    stream, parts = CheckedLines(io.BytesIO(content), PLACE), []
    while part := stream.read(size):
        parts.append(part)
    return b"".join(parts)


@settings(max_examples=60, deadline=None)
@given(st.lists(OBJECT, max_size=6), st.integers(1, 50), st.sampled_from(["\n", "\n\n", " \n", "\r\n"]), st.booleans())
def test_good_lines_pass(values: list[object], size: int, ends: str, has_mark: bool) -> None:
    content = (b"\xef\xbb\xbf" if has_mark else b"") + lines_of(values, ends)
    assert read_all(content, size) == content
    assert find_damaged_line(io.BytesIO(content), PLACE) is None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(OBJECT, max_size=5),
    st.sampled_from([b"null", b"  null", b"3", b"[{}]", b'"{}"', b"true", b"\t[]", b'{"text": "\xff"}']),
    st.lists(OBJECT, max_size=5),
    st.integers(1, 50),
)
def test_a_line_that_is_no_object_is_named(before: list[object], bad: bytes, after: list[object], size: int) -> None:
    parts = [lines_of([value]) for value in before] + [bad] + [lines_of([value]) for value in after]
    content = b"\n".join(parts)
    with pytest.raises(DataError) as error:
        read_all(content, size)
    assert error.value.problems[0].where == f"file, line {len(before)}"


@pytest.mark.parametrize("bad", [b"null\n", b"null", b'{"a": 1}\nnull\n', b'{"a": ' + b"[" * 60_000])
def test_pyarrow_never_sees_what_it_cannot_bear(bad: bytes) -> None:
    """Without the check these lines end the process, or become rows without values."""
    with pytest.raises(DataError, match=r"this line is not|a line nests"):
        list(whole_lines(CheckedLines(io.BytesIO(bad), PLACE), 2**20))


@settings(max_examples=60, deadline=None)
@given(st.lists(OBJECT, max_size=6), st.integers(1, 50), st.sampled_from(["\n", "\n\n", " \n", "\r\n"]))
def test_blocks_are_whole_lines(values: list[object], size: int, ends: str) -> None:
    blocks = list(whole_lines(CheckedLines(io.BytesIO(lines_of(values, ends)), PLACE), size))
    assert all(block.endswith(b"\n") for block in blocks[:-1])
    assert [json.loads(line) for line in b"".join(blocks).splitlines() if line.strip()] == values


def test_text_with_many_brackets_is_no_nesting() -> None:
    content = json.dumps({"image": [[[0] * 3] * 84] * 84, "text": "[" * 900}).encode()
    assert read_all(content, 2**20) == content


def test_where_a_line_is_damaged() -> None:
    error = find_damaged_line(io.BytesIO(b'{"a": 1}\n{"a": \n{}'), PLACE)
    assert error is not None
    assert "file, line 1" in str(error)
    error = find_damaged_line(io.BytesIO(b'{"a": 1}\n{"a": '), PLACE)
    assert error is not None
    assert "the file is truncated" in str(error)


def test_only_the_caller_reads_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of pyarrow that reads ahead when the process ends would abort it."""
    readers: set[int] = set()
    read = CheckedLines.read

    def noted(self: CheckedLines, size: int) -> bytes:
        readers.add(threading.get_ident())
        return read(self, size)

    monkeypatch.setattr(CheckedLines, "read", noted)
    row = '{"obs": [1.0], "actions": 0, "rewards": 1.0}\n'
    for first in ("", "{bad\n", "null\n"):
        (tmp_path / "a.json").write_text(first + row * 1000)
        options = {"input_read_method_kwargs": {"block_size": 1000}}
        with suppress(DataError):
            list(open_source(OfflineConfig(input_=str(tmp_path / "a.json"), **options)).blocks())  # type: ignore[arg-type]
    assert readers == {threading.get_ident()}
