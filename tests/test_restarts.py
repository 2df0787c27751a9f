"""How often what was lost may be started again, and what ends with the Ray of a run."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.compat.ray_cluster import lost_process
from runner.config.errors import RunFailure
from runner.interrupts import also_ended_by, interrupts, reason_to_end
from runner.restarts import Restarts
from tests.conftest import QUICK, WAIT_S, progress_of, result_of, wait_until, without_times


def test_restarts_are_counted_up_to_their_limit() -> None:
    restarts = Restarts(2, "learners.max_restarts")
    restarts.add("learner 1 is gone", 1)
    restarts.add("learner 1 is gone", 2)
    with pytest.raises(RunFailure, match="learner 0 is gone, and all 2 allowed restarts have been used") as failure:
        restarts.add("learner 0 is gone", 1)
    assert failure.value.problem.where == "learners.max_restarts"
    assert restarts.count == 2


def test_what_is_lost_each_time_is_not_started_for_ever() -> None:
    restarts = Restarts(1000, "")
    for deaths_in_a_row in (1, 2, 3):
        restarts.add("it is gone", deaths_in_a_row)
    with pytest.raises(RunFailure, match="it died 4 times in a row"):
        restarts.add("it is gone", 4)


def test_restarts_may_be_off() -> None:
    with pytest.raises(RunFailure, match="restarts are disabled"):
        Restarts(0, "").add("it is gone", 1)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_a_run_whose_own_ray_is_lost_ends_with_a_checkpoint_and_goes_on_with_a_new_one(
    start_main: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """Ray would end the process a minute later; ours is quicker."""
    settings = ["+experiment=ppo_cartpole", *QUICK, "env_runners.num_env_runners=1"]
    run = start_main(*settings, "stop.training_iteration=100000", "hydra.run.dir=run")
    wait_until((tmp_path / "run" / "progress.jsonl").exists, run)
    os.kill(child_named("gcs_server", run.pid), signal.SIGKILL)
    out, err = run.communicate(timeout=WAIT_S)
    assert run.returncode == 130, out + err
    assert "interrupted: Ray's gcs_server (exit code -9) has ended after iteration" in out + err
    end = result_of(tmp_path / "run")["training_iteration"] + 5
    for arguments in (["resume", "run"], [*settings, "hydra.run.dir=undisturbed"]):
        process = start_main(*arguments, f"stop.training_iteration={end}")
        out, err = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, out + err
    got, expected = (progress_of(tmp_path / name) for name in ("run", "undisturbed"))
    assert [without_times(line) for line in got] == [without_times(line) for line in expected]


class _Node:
    """Ray's node, of which processes have ended."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def dead_processes(self) -> list[tuple[str, Any]]:
        return [(name, SimpleNamespace(returncode=-9)) for name in self._names]


@pytest.mark.parametrize(
    ("node", "lost"),
    [
        (None, None),
        (_Node(), None),
        (_Node("log_monitor"), None),
        (_Node("log_monitor", "raylet"), "Ray's raylet (exit code -9)"),
        (SimpleNamespace(), None),  # of another version of Ray
    ],
)
def test_what_is_lost_with_ray_is_not_started_again(
    monkeypatch: pytest.MonkeyPatch, node: Any, lost: str | None
) -> None:
    monkeypatch.setattr("ray._private.worker._global_node", node)
    assert lost_process() == lost
    if lost is None:
        Restarts(1, "").add("it is gone", 1)
    else:
        with pytest.raises(RunFailure, match=re.escape(f"it is gone, and {lost} has ended")):
            Restarts(1, "").add("it is gone", 1)


def test_a_condition_ends_blocks_that_can_be_ended_alone() -> None:
    with also_ended_by(lambda: "the sky has fallen"):
        assert reason_to_end() is None
        with interrupts():
            assert reason_to_end() == "the sky has fallen"
        assert reason_to_end() is None
    with interrupts():
        assert reason_to_end() is None


def child_named(name: str, parent: int) -> int:
    """The process of this name that another one has started."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it is gone
            head, _, rest = stat.read_text().rpartition(") ")
            if head.partition("(")[2] == name and int(rest.split()[1]) == parent:
                return int(stat.parent.name)
    raise AssertionError(f"process {parent} has no child {name}")
