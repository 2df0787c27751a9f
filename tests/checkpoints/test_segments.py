"""Segments in checkpoints: written once, linked afterwards, and named when they are damaged."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.checkpoints import CheckpointError, load_checkpoint, read_manifest, save_checkpoint
from runner.checkpoints.folder import check_intact, naming_older
from runner.config.errors import Problem
from runner.segments import Segment, SegmentFile, find_segments
from tests.support.forging import rewrite_manifest

VALUES: dict[str, Any] = {
    "columns": {"obs": {"x": np.arange(6.0).reshape(3, 2), "y/z": (np.arange(3), np.zeros(3, np.bool_))}},
    "note": "hello",
    "empty": np.zeros((0, 2), np.uint8),
}


class Part:
    """A part of a run with two segments, of which the second one changes."""

    def __init__(self) -> None:
        self.files = [SegmentFile(), SegmentFile()]
        self.number = 0
        self.num_read = 0

    def change(self) -> None:
        self.number += 1
        self.files[1] = SegmentFile()

    def get_state(self) -> dict[str, Any]:
        return {"part": {"number": self.number, "segments": [Segment(self.files[n], self._read(n)) for n in (0, 1)]}}

    def _read(self, number: int) -> Callable[[], dict[str, Any]]:
        def read() -> dict[str, Any]:
            self.num_read += 1
            return {**VALUES, "number": self.number * number}

        return read


def segments_in(folder: Path) -> list[dict[str, Any]]:
    return [dict(segment.values()) for segment in load_checkpoint(folder)[0]["part"]["segments"]]


@pytest.fixture
def part() -> Part:
    return Part()


@pytest.fixture
def two(part: Part, tmp_path: Path) -> Path:
    """The second of two checkpoints of a run."""
    for number in (1, 2):
        part.change()
        save_checkpoint(tmp_path / f"iteration_{number:06d}", part.get_state(), {"result": {}})
    return tmp_path / "iteration_000002"


def test_values_come_back(two: Path) -> None:
    first, second = segments_in(two)
    np.testing.assert_equal(first, {**VALUES, "number": 0})
    assert isinstance(first["columns"]["obs"]["y/z"], tuple)
    assert second["number"] == 2


def test_only_what_changed_is_read_and_written(two: Path, part: Part) -> None:
    assert part.num_read == 3
    links = [path.stat().st_nlink for path in sorted(two.glob("*.segment"))]
    assert links == [2, 1]
    assert part.files[0].path == two / "part.000000.segment", "the newest checkpoint that has it"


def test_each_checkpoint_is_complete_by_itself(two: Path, part: Part, tmp_path: Path) -> None:
    shutil.copytree(two, tmp_path / "elsewhere" / "copy")
    shutil.rmtree(tmp_path / "iteration_000001")
    assert [one["number"] for one in segments_in(two)] == [0, 2]
    shutil.rmtree(two)
    assert [one["number"] for one in segments_in(tmp_path / "elsewhere" / "copy")] == [0, 2]
    save_checkpoint(tmp_path / "iteration_000003", part.get_state(), {})
    assert [one["number"] for one in segments_in(tmp_path / "iteration_000003")] == [0, 2]


def test_a_checkpoint_of_the_same_name_is_replaced(two: Path, part: Part) -> None:
    part.change()
    save_checkpoint(two, part.get_state(), {})
    assert [one["number"] for one in segments_in(two)] == [0, 3]


def test_a_file_system_without_links(two: Path, part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    folder = two.with_name("iteration_000003")
    save_checkpoint(folder, part.get_state(), {})
    assert [one["number"] for one in segments_in(folder)] == [0, 2]
    assert [path.stat().st_nlink for path in folder.glob("*.segment")] == [1, 1]


def test_a_file_that_was_cut_is_not_linked(two: Path, part: Part) -> None:
    (two / "part.000000.segment").write_bytes(b"cut")
    folder = two.with_name("iteration_000003")
    save_checkpoint(folder, part.get_state(), {})
    assert [one["number"] for one in segments_in(folder)] == [0, 2]


def test_other_runs_share_no_files(two: Path, part: Part, tmp_path: Path) -> None:
    state = load_checkpoint(two)[0]
    folder = tmp_path / "another" / "iteration_000003"
    save_checkpoint(folder, state, {})
    assert [path.stat().st_nlink for path in folder.glob("*.segment")] == [1, 1]
    assert [one["number"] for one in segments_in(folder)] == [0, 2]


@pytest.mark.parametrize("fails_at", range(6))
def test_a_write_that_fails_loses_nothing(
    two: Path, part: Part, fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(100))

    def full(descriptor: int) -> None:
        if next(calls) == fails_at:
            raise OSError(28, "No space left on device")

    part.change()
    monkeypatch.setattr(os, "fsync", full)
    folder = two.with_name("iteration_000003")
    if fails_at < 5:  # a segment, json, safetensors, manifest, folder
        with pytest.raises(OSError, match="No space left"):
            save_checkpoint(folder, part.get_state(), {})
        assert not folder.exists()
    monkeypatch.undo()
    assert part.files[1].path is None
    save_checkpoint(folder, part.get_state(), {})
    assert [one["number"] for one in segments_in(folder)] == [0, 3]


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_missing", "problem"),
    [
        (True, Problem("a file of the checkpoint is missing", got="no such file")),
        (False, Problem("a file of the checkpoint is truncated or altered", got="666 bytes", expected="667 bytes")),
    ],
)
def test_a_missing_or_cut_segment_is_named_at_once(two: Path, is_missing: bool, problem: Problem) -> None:
    path = two / "part.000001.segment"
    content = path.read_bytes()
    path.unlink()
    if not is_missing:
        path.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match=r"part.000001.segment") as caught:
        check_intact(two)
    fix = f"use this older checkpoint:\n{two.with_name('iteration_000001')}"
    assert caught.value.problem == replace(problem, where=str(path), fix=fix)


def test_every_flipped_byte_of_a_segment_is_found(two: Path) -> None:
    path = two / "part.000001.segment"
    content = path.read_bytes()
    for position in range(0, len(content), 5):
        damaged = bytearray(content)
        damaged[position] ^= 4
        path.write_bytes(bytes(damaged))
        state = load_checkpoint(two)[0]
        with pytest.raises(CheckpointError, match=r"part.000001.segment"), naming_older(two):
            list(map(Segment.values, find_segments(state)))


def test_what_is_damaged_names_the_newest_intact_checkpoint(two: Path, tmp_path: Path) -> None:
    """The first segment is one file in both checkpoints."""
    none, first = "start a new run: none of its older checkpoints is intact", tmp_path / "iteration_000001"
    fixes = {"part.000001.segment": f"use this older checkpoint:\n{first}", "part.000000.segment": none}
    for name, fix in fixes.items():
        path = two / name
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        state = load_checkpoint(two)[0]
        with pytest.raises(CheckpointError) as caught, naming_older(two):
            list(map(Segment.values, find_segments(state)))
        assert caught.value.problem.fix == fix


def test_a_reference_to_no_file_of_the_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.segment").write_bytes(b"secret")
    for reference in (["../elsewhere.segment", 6], ["part.json", "x"], ["part.json"], [], "text", 7, None):
        save_checkpoint(tmp_path / "one", {"part": {"segment": {"reference": reference}}}, {})
        path = tmp_path / "one" / "part.json"
        content = path.read_bytes().replace(b'"reference"', b'"$segment"')
        path.write_bytes(content)
        manifest = read_manifest(tmp_path / "one")
        files = {**manifest["files"], path.name: hashlib.sha256(content).hexdigest()}
        rewrite_manifest(tmp_path / "one", {**manifest, "files": files})
        with pytest.raises(CheckpointError, match="the checkpoint cannot be read"):
            load_checkpoint(tmp_path / "one")
