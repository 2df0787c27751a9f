"""A run dir that two processes want, that vanishes, or whose disk is full; a terminal that closes."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import (
    QUICK,
    ROOT,
    WAIT_S,
    Run,
    Start,
    checkpoints_of,
    default_hangup,
    num_lines,
    progress_of,
    result_of,
    wait_until,
)

ENDLESS = ("+experiment=ppo_cartpole", *QUICK, "stop.training_iteration=100000", "hydra.run.dir=run")


def texts_of(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.slow
def test_a_run_that_trains_is_nobody_elses(start_main: Start, run_main: Run, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run = start_main(*ENDLESS, "checkpoint.every_iterations=5", "checkpoint.keep_last=1000")
    wait_until(lambda: num_lines(run_dir) >= 7, run)
    configuration = texts_of(run_dir / ".hydra")
    resumed = run_main("resume", "run")
    again = run_main(*ENDLESS, "seed=7")
    evaluated = run_main("evaluate", "run", "evaluation.evaluation_duration=1")
    for outcome in (resumed, again):
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.startswith("the run dir belongs to another process\n")
        assert f", pid {run.pid}, since 20" in outcome.err
    assert evaluated.code == 0, evaluated.err
    assert texts_of(run_dir / ".hydra") == configuration, "nothing is written before the lock is held"
    wait_until(lambda: num_lines(run_dir) >= 12, run)
    run.send_signal(signal.SIGTERM)
    _, err = run.communicate(timeout=WAIT_S)
    assert (run.returncode, err) == (130, "")
    lines = [line["training_iteration"] for line in progress_of(run_dir)]
    assert lines == list(range(1, len(lines) + 1)), "no line of the first was lost"
    more = f"stop.training_iteration={len(lines) + 1}"
    assert run_main("resume", "run", more).code == 0


@pytest.mark.slow
def test_a_folder_that_vanishes_is_named_and_not_made_again(start_main: Start, tmp_path: Path) -> None:
    run = start_main(*ENDLESS, "checkpoint.every_iterations=2")
    wait_until(lambda: num_lines(tmp_path / "run") >= 3, run)
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    _, err = run.communicate(timeout=WAIT_S)
    assert run.returncode == 1
    assert err.startswith("the folder no longer exists\n")
    assert str(tmp_path / "run") in err
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no permission to mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("filled", ["checkpoint", "progress"])
def test_a_full_disk_is_named(filled: str, small_disk: Path, start_main: Start) -> None:
    run_dir = small_disk / "run"
    every = "checkpoint.every_iterations=3" if filled == "checkpoint" else "checkpoint.every_iterations=null"
    run = start_main(*ENDLESS[:-1], f"hydra.run.dir={run_dir}", every, "module.fcnet_hiddens=[8]")
    wait_until(lambda: num_lines(run_dir) >= 4, run)
    with (small_disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while ballast.write(bytes(4096)):
            pass
    _, err = run.communicate(timeout=WAIT_S)
    assert run.returncode == 1
    assert err.startswith("a file of the run cannot be written: the disk is full\n"), err
    assert f"{run_dir}, 0.0 of 1.0 MB free" in " ".join(err.split())
    assert "`resume` continues from the last checkpoint" in err
    assert "Traceback" not in err
    assert "Logging error" not in err
    content = (run_dir / "progress.jsonl").read_bytes()
    assert content.endswith(b"\n"), "no half line"
    (small_disk / "ballast").unlink()
    if filled == "checkpoint":
        assert checkpoints_of(run_dir)[-1].startswith("iteration_")
        done = int(checkpoints_of(run_dir)[-1].removeprefix("iteration_"))
        resumed = start_main("resume", str(run_dir), f"stop.training_iteration={done + 1}")
        _, err = resumed.communicate(timeout=WAIT_S)
        assert (resumed.returncode, err) == (0, "")


def test_a_store_of_mlflow_that_is_read_only_is_named_and_stops_nothing(
    small_disk: Path, start_main: Start, tmp_path: Path
) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    more = ("tracking=mlflow", f"tracking.tracking_uri=sqlite:///{small_disk}/mlflow.db", "tracking.display=none")
    run = start_main(*ENDLESS[:-2], "stop.training_iteration=3", "hydra.run.dir=run", *more)
    _, err = run.communicate(timeout=WAIT_S)
    assert run.returncode == 0
    assert result_of(tmp_path / "run")["training_iteration"] == 3
    assert "or set tracking.tracking_uri, or tracking.mlflow=false" in err
    assert "Traceback" not in err


# -- SIGHUP --------------------------------------------------------------------------------------------------------


def test_a_terminal_that_closes_ends_a_run_with_a_checkpoint(tmp_path: Path) -> None:
    """Its own process gets SIGHUP from the kernel, and a second one from the shell."""
    terminal, slave = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "TERM": "xterm"}
    quiet = [text for text in ENDLESS if text != "tracking=none"]
    command = [sys.executable, "-m", "runner", *quiet, "tracking.mlflow=false", "checkpoint.every_iterations=null"]

    def own_terminal() -> None:
        os.setsid()
        default_hangup()
        os.close(os.open(os.ttyname(0), os.O_RDWR))  # the first one that a session opens is its own

    streams = {"stdin": slave, "stdout": slave, "stderr": slave}
    run = subprocess.Popen(command, cwd=tmp_path, env=environment, preexec_fn=own_terminal, text=True, **streams)
    os.close(slave)
    os.set_blocking(terminal, False)

    def has_lines() -> bool:
        drain(terminal)
        return num_lines(tmp_path / "run") >= 3

    try:
        wait_until(has_lines, run)
        os.close(terminal)
        run.send_signal(signal.SIGHUP)
        assert run.wait(WAIT_S) == 130
    finally:
        run.kill()
        run.wait()
    done = len(progress_of(tmp_path / "run"))
    assert checkpoints_of(tmp_path / "run") == [f"iteration_{done:06d}"]
    assert result_of(tmp_path / "run")["stop_reason"] == f"SIGHUP after iteration {done}"
    assert f"interrupted: SIGHUP after iteration {done}" in (tmp_path / "run" / "runner.log").read_text()


def drain(terminal: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(terminal, 65536)


def test_under_nohup_a_hangup_ends_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = ["nohup", sys.executable, "-m", "runner", *ENDLESS]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, text=True, **streams) as run:
        wait_until(lambda: num_lines(tmp_path / "run") >= 2, run)
        run.send_signal(signal.SIGHUP)
        num_done = num_lines(tmp_path / "run")
        wait_until(lambda: num_lines(tmp_path / "run") >= num_done + 20, run)
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=WAIT_S)
    assert run.returncode == 130
    assert result_of(tmp_path / "run")["stop_reason"].startswith("SIGTERM after iteration ")


# -- runner.log ----------------------------------------------------------------------------------------------------


def test_the_log_of_a_good_run_says_what_the_terminal_said(run_main: Run, tmp_path: Path) -> None:
    more = ("tracking.mlflow=false", "stop.training_iteration=2", "hydra.run.dir=run")
    outcome = run_main("+experiment=ppo_cartpole", *QUICK[:-1], *more)
    assert outcome.code == 0
    logged = [line.partition(" - ")[2] for line in (tmp_path / "run" / "runner.log").read_text().splitlines()]
    said = [line for line in outcome.out.splitlines() if not re.match(r" +\d+ ", line)]
    assert [line for line in logged if not re.match(r" +\d+ ", line)] == said
    assert [line for line in logged if line.startswith("    2  ")]


def test_a_result_that_cannot_be_written_is_no_success(run_main: Run, tmp_path: Path) -> None:
    (tmp_path / "run" / "result.json").mkdir(parents=True)
    outcome = run_main("+experiment=ppo_cartpole", *QUICK, "hydra.run.dir=run", "stop.training_iteration=1")
    assert outcome.code == 1
    assert "result.json" in outcome.err
