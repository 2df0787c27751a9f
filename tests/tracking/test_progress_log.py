""""""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from runner.tracking.progress_log import ProgressLog, write_result

ROOT = Path(__file__).parents[2]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ProgressLog]:
    log = ProgressLog(tmp_path / "run" / "progress.jsonl")
    yield log
    log.close()


def write_iterations(log: ProgressLog, last: int) -> None:
    for iteration in range(1, last + 1):
        log.append({"training_iteration": iteration, "env_runners/episode_return_mean": iteration * 1.5})


def iterations(log: ProgressLog) -> list[int]:
    return [record["training_iteration"] for record in log.read()]


def test_lines_are_flat_strict_json(log: ProgressLog) -> None:
    log.append({"training_iteration": np.int64(1), "loss": np.float32(0.5), "mean": math.nan, "max": math.inf})
    text = log.path.read_text()
    assert text == '{"training_iteration":1,"loss":0.5,"mean":null,"max":null}\n'
    assert log.read() == [json.loads(text)]


def test_floats_keep_every_bit(log: ProgressLog) -> None:
    value = 0.1 + 0.2
    log.append({"training_iteration": 1, "value": np.float64(value)})
    assert log.read()[0]["value"] == value


def test_no_file_reads_as_no_lines(log: ProgressLog) -> None:
    assert log.read() == []
    assert log.truncate_after(3) == 0
    assert not log.path.exists()


def test_truncation_drops_what_came_after_the_checkpoint(log: ProgressLog) -> None:
    write_iterations(log, 5)
    assert log.truncate_after(3) == 2
    assert iterations(log) == [1, 2, 3]
    log.append({"training_iteration": 4})
    assert iterations(log) == [1, 2, 3, 4]
    assert list(log.path.parent.iterdir()) == [log.path]


def test_truncation_keeps_whole_lines_byte_for_byte(log: ProgressLog) -> None:
    write_iterations(log, 3)
    content = log.path.read_bytes()
    assert log.truncate_after(3) == 0
    assert log.path.read_bytes() == content


@pytest.mark.parametrize("half", [b'{"training_iter', b'{"training_iteration":3}', b"\xff\xfe", b"{"])
def test_a_half_written_last_line_is_dropped(log: ProgressLog, half: bytes) -> None:
    write_iterations(log, 2)
    log.close()
    with log.path.open("ab") as file:
        file.write(half)
    assert iterations(log) == [1, 2]
    assert log.truncate_after(3) == 1
    log.append({"training_iteration": 3})
    assert iterations(log) == [1, 2, 3]


def test_appending_after_a_half_line_does_not_join_it(log: ProgressLog) -> None:
    write_iterations(log, 1)
    log.close()
    with log.path.open("ab") as file:
        file.write(b'{"training_iter')
    log.append({"training_iteration": 2})
    assert iterations(log) == [1, 2]


def test_sigkill_loses_no_line(log: ProgressLog) -> None:
    script = (
        "import os, signal, sys; from runner.tracking.progress_log import ProgressLog\n"
        "log = ProgressLog(sys.argv[1])\n"
        "for i in range(1, 4): log.append({'training_iteration': i})\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", script, log.path], cwd=ROOT, env=os.environ, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert iterations(log) == [1, 2, 3]


def test_result_is_readable_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "run" / "result.json"
    write_result(path, {"status": "finished", "loss": np.float32(0.5), "mean": math.nan, "checkpoint": Path("/c")})
    assert json.loads(path.read_text()) == {
        "status": "finished",
        "loss": 0.5,
        "mean": None,
        "checkpoint": "/c",
    }


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    write_result(path, {"status": "old"})

    def fail(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        write_result(path, {"status": "new"})
    assert json.loads(path.read_text()) == {"status": "old"}
    assert os.listdir(tmp_path) == ["result.json"]
