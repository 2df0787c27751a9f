"""What a cluster leaves behind when the process that started it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.cluster.leftovers import VARIABLE, MarkedProcesses
from tests.conftest import QUICK, ROOT, Start, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Ray's own reaper has to do")

GONE_WITHIN_S = 10.0
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
# A process that starts what the watchdog has to find: a simulator without a parent that is deaf to SIGTERM, and a
# fork without exec that holds the watchdog's pipe open.
OWNER = f"""
import os, subprocess, sys, time
from runner.cluster.watchdog import Watchdog
watchdog = Watchdog()
shell = ["sh", "-c", '"$0" -c "$1" > up & exit']
with watchdog.marking():
    subprocess.run([*shell, sys.executable, {DEAF!r}], start_new_session=True)
assert "{VARIABLE}" not in os.environ
unmarked = subprocess.Popen(["sleep", "600"])
if os.fork() == 0:
    time.sleep(600)
print(watchdog._mark, unmarked.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def pids_of(mark: str) -> set[int]:
    marked = MarkedProcesses(mark)
    marked.look_up()
    return {pid for pid, _ in marked.alive}


def forks_of(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_what_has_the_mark_ends_with_its_owner_and_nothing_else_does(
    owner: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert owner.stdout is not None
    mark, unmarked = owner.stdout.readline().split()
    wait_until(lambda: (tmp_path / "up").exists() and "up" in (tmp_path / "up").read_text())
    (deaf,) = pids_of(mark)
    others = [pid for pid in forks_of(owner.pid) if pid != deaf]
    try:
        owner.send_signal(signal.SIGKILL)  # nobody has waited for it: a zombie has ended, too
        wait_until(lambda: not pids_of(mark), timeout_s=GONE_WITHIN_S)
        os.kill(int(unmarked), 0)  # is there
    finally:
        for pid in others:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.ray
def test_nothing_of_ray_outlives_a_killed_run(start_main: Start, tmp_path: Path) -> None:
    more = ("env_runners.num_env_runners=1", "stop.training_iteration=100000", "hydra.run.dir=run")
    run = start_main("+experiment=ppo_cartpole", *QUICK, *more)
    wait_until((tmp_path / "run" / "progress.jsonl").exists)
    environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in forks_of(run.pid)]
    (mark,) = {
        entry.partition(b"=")[2].decode()
        for environment in environments
        for entry in environment.split(b"\0")
        if entry.startswith(VARIABLE.encode())
    }
    marked = MarkedProcesses(mark)
    marked.look_up()
    assert len(marked.alive) > 4
    time.sleep(2.5)  # the watchdog looks every two seconds: agents, which overwrite their environment, are known
    run.kill()

    def are_gone() -> bool:
        marked.look_up()
        return not marked.alive

    wait_until(are_gone, timeout_s=GONE_WITHIN_S)
