"""Who has a folder, and when a dead owner has it no longer."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner import locks
from runner.config.errors import Problem
from runner.locks import LOCK_FILE, STALE_AFTER_S, Claim, FolderHeld, FolderLost, held, owner_of
from tests.conftest import ROOT, wait_until
from tests.support.problems import shown_problems

HOLDER = """
import sys, time
from pathlib import Path
from runner.locks import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the folder."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def write_claim(folder: Path, age_s: float = 0.0, **fields: object) -> Claim:
    """A claim as another process has written it."""
    written = dataclasses.replace(Claim.of_this_process(None), token="other", **fields)  # type: ignore[arg-type]
    (folder / LOCK_FILE).write_text(json.dumps(dataclasses.asdict(written)))
    os.utime(folder / LOCK_FILE, (time.time() - age_s,) * 2)
    return written


def test_a_living_owner_is_named_and_a_dead_one_lets_go_at_once(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    with pytest.raises(FolderHeld) as refused, held(tmp_path):
        pass
    assert refused.value.exit_code == 2
    message = re.sub(r"since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d,", "since 2026-01-01 00:00:00,", str(refused.value))
    host, pid, command = socket.gethostname(), holder.pid, "-c TMP"
    assert shown_problems(message, tmp_path) == [
        Problem(
            "the run dir belongs to another process",
            "TMP",
            f"host {host}, pid {pid}, since 2026-01-01 00:00:00, last heartbeat 0 s ago: {command}",
            fix=f"wait until it ends, end it with `kill {pid}`, or use another folder",
        )
    ]
    holder.send_signal(signal.SIGSTOP)
    assert owner_of(tmp_path) is not None, "a process that is stopped may go on"
    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is a zombie
    assert owner_of(tmp_path) is None
    with held(tmp_path):
        assert owner_of(tmp_path) is not None
    assert owner_of(tmp_path) is None


def test_a_pid_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    own = Claim.of_this_process(None)
    write_claim(tmp_path, started=(own.started or 0) - 1)
    with held(tmp_path):
        pass


def test_a_process_of_another_machine_is_judged_by_its_heartbeat(tmp_path: Path) -> None:
    write_claim(tmp_path, host="node7", machine="node7 boot", pid=1)
    with pytest.raises(FolderHeld) as refused, held(tmp_path):
        pass
    assert "host node7, pid 1, " in str(refused.value)
    assert "`kill 1` on node7" in str(refused.value)
    assert "the folder is free 60 s after its last heartbeat" in " ".join(str(refused.value).split())
    write_claim(tmp_path, age_s=STALE_AFTER_S + 1, host="node7", machine="node7 boot", pid=1)
    with held(tmp_path):
        pass


def test_heartbeats_renew_the_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "BEAT_S", 0.02)
    with held(tmp_path):
        os.utime(tmp_path / LOCK_FILE, (0, 0))
        wait_until(lambda: locks.heartbeat_age_s(tmp_path) <= 5)


def test_an_owner_that_was_taken_over_is_told_and_leaves_the_claim(tmp_path: Path) -> None:
    with held(tmp_path) as lock:
        lock.check()
        write_claim(tmp_path, host="node7", machine="node7 boot", pid=4)
        lock._beat_at -= STALE_AFTER_S  # as after a sleep
        with pytest.raises(FolderLost, match=r"taken over[^$]*node7"):
            lock.check()
    owner = owner_of(tmp_path)
    assert owner is not None
    assert owner.host == "node7"


def test_a_folder_that_vanishes_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with held(folder) as lock:
        (folder / LOCK_FILE).unlink()
        with pytest.raises(FolderLost, match="lock file of the folder was deleted"):
            lock.check()
        shutil.rmtree(folder)
        with pytest.raises(FolderLost, match="the folder no longer exists"):
            lock.check()


def test_trials_of_a_sweep_hand_their_folders_over_and_nobody_else_gets_them(tmp_path: Path) -> None:
    trial = tmp_path / "0"
    trial.mkdir()
    with held(tmp_path, "sweep's folder"):
        sweep = owner_of(tmp_path)
        assert sweep is not None
        with held(trial, member_of=sweep.token) as first:
            with held(trial, member_of=sweep.token) as second:
                second.check()
            with pytest.raises(FolderHeld, match="part of a folder that belongs to another process"), held(trial):
                pass
            first._beat_at -= STALE_AFTER_S
            first.check()  # it has been let go
    with held(trial):
        pass


def test_of_many_that_come_at_once_one_gets_it(tmp_path: Path) -> None:
    write_claim(tmp_path, started=1)  # of a dead one
    outcomes: list[str] = []
    start, end = threading.Barrier(6), threading.Barrier(6)

    def take() -> None:
        start.wait()
        try:
            with held(tmp_path):
                outcomes.append("held")
                end.wait()
        except FolderHeld:
            outcomes.append("refused")
            end.wait()

    threads = [threading.Thread(target=take) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(outcomes) == ["held"] + ["refused"] * 5


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim that was written last counts, and the others see it."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    def another_one_writes(_: float) -> None:
        write_claim(tmp_path, host="node7", machine="node7 boot")

    monkeypatch.setattr("fcntl.flock", refuse)
    monkeypatch.setattr(locks, "_SETTLE_S", 0.0)
    with held(tmp_path), pytest.raises(FolderHeld), held(tmp_path):
        pass
    monkeypatch.setattr(locks.time, "sleep", another_one_writes)
    with pytest.raises(FolderHeld, match="node7"), held(tmp_path):
        pass


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"pid": 1}'])
def test_a_lock_file_that_says_nothing_is_free(content: str, tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).write_text(content)
    with held(tmp_path):
        pass
