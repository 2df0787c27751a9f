"""A progress.jsonl that is read again and again while it grows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.tracking.progress_log import ProgressLog
from runner.tracking.series import GrowingColumns, read_columns


def columns_of(growing: GrowingColumns) -> dict[str, list[Any]]:
    """As lists, with None for NaN."""
    read = growing.read()
    return {name: [None if value != value else value for value in column] for name, column in read.items()}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ProgressLog]:
    log = ProgressLog(tmp_path / "progress.jsonl")
    yield log
    log.close()


def test_it_grows(log: ProgressLog) -> None:
    growing = GrowingColumns(log.path)
    assert columns_of(growing) == {}
    log.append({"a": 1, "text": "x"})
    assert columns_of(growing) == {"a": [1]}
    log.append({"a": None, "b": 2})
    log.append({"b": 3})
    assert columns_of(growing) == {"a": [1, None, None], "b": [None, 2, 3]}
    assert growing.newest == {"a": 1, "b": 3, "text": "x"}


def test_only_what_is_new_is_read(log: ProgressLog) -> None:
    """Bytes that have been read are changed behind its back: it does not notice."""
    growing = GrowingColumns(log.path)
    for number in (1, 2):
        log.append({"a": number})
    assert columns_of(growing) == {"a": [1, 2]}
    log.path.write_bytes(log.path.read_bytes().replace(b"1", b"7"))
    log.append({"a": 3})
    assert columns_of(growing) == {"a": [1, 2, 3]}


def test_half_a_line_waits(log: ProgressLog) -> None:
    growing = GrowingColumns(log.path)
    log.path.write_text('{"a": 1}\n{"a": ')
    assert columns_of(growing) == {"a": [1]}
    with log.path.open("a") as file:
        file.write('2}\nnonsense\n[3]\n{"a": 4}\n')
    assert columns_of(growing) == {"a": [1, 2, 4]}


def test_a_resumed_run_drops_lines(log: ProgressLog) -> None:
    growing = GrowingColumns(log.path)
    for iteration in range(1, 6):
        log.append({"training_iteration": iteration, "a": iteration})
    growing.read()
    log.truncate_after(3)
    assert columns_of(growing)["a"] == [1, 2, 3]
    for iteration in range(4, 9):
        log.append({"training_iteration": iteration, "a": 10 * iteration})
    assert columns_of(growing)["a"] == [1, 2, 3, 40, 50, 60, 70, 80]
    assert growing.newest["a"] == 80


def test_lines_that_changed_between_two_readings(log: ProgressLog) -> None:
    """The file is longer than before, and yet another one."""
    growing = GrowingColumns(log.path)
    for iteration in range(1, 4):
        log.append({"training_iteration": iteration, "a": iteration})
    growing.read()
    log.truncate_after(1)
    for iteration in range(2, 9):
        log.append({"training_iteration": iteration, "a": -iteration})
    assert columns_of(growing)["a"] == [1, *range(-2, -9, -1)]
    log.close()
    log.path.unlink()
    assert columns_of(growing) == {}
    assert growing.newest == {}


def test_it_is_what_is_read_at_once(log: ProgressLog, tmp_path: Path) -> None:
    growing = GrowingColumns(log.path)
    lines = [{"a": 1}, {"b": None, "a": None}, {"c": 0.5, "a": "text"}, {"b": 2, "d": True}]
    for line in lines:
        log.append(line)
        growing.read()
    assert json.dumps(columns_of(growing)) == json.dumps(columns_of(GrowingColumns(log.path)))
    assert list(growing.read()) == list(read_columns(tmp_path)) == ["a", "b", "c"]


def test_only_the_metrics_that_are_asked_for(log: ProgressLog) -> None:
    growing = GrowingColumns(log.path, ["b", "a", "b"])
    log.append({"a": 1, "c": 2})
    log.append({"b": 3})
    assert columns_of(growing) == {"b": [None, 3], "a": [1, None]}
    assert growing.newest == {"a": 1, "b": 3, "c": 2}


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is not a regular file"):
        GrowingColumns(tmp_path / "pipe").read()
