"""Which cluster a process uses (never one that merely runs on this machine), and the end of a process of Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.config.blocks import RayConfig
from runner.config.errors import ConfigError, Problem
from runner.experiment.trainer import Trainer
from tests.cluster.host import environment_of, hosted_ray
from tests.conftest import ROOT, WAIT_S

pytestmark = pytest.mark.ray

CLIENT = """
import json, os, sys, ray
from runner.cluster import connected
from runner.config.errors import ConfigError
from runner.config.blocks import RayConfig
notes = []
try:
    with connected(RayConfig(sys.argv[1] or None), {"CPU": 1}, "env_runners.num_env_runners", notes.append):
        address, num_cpus = ray.get_runtime_context().gcs_address, ray.cluster_resources()["CPU"]
    print(json.dumps({"address": address, "num_cpus": num_cpus, "notes": notes, "left": not ray.is_initialized()}))
except ConfigError as error:
    print(json.dumps({"error": str(error), "notes": notes}))
"""


TOLD_BY_RAY = """
import logging, threading, ray
from ray._private import utils, worker
from runner.cluster import start_local_ray, stop_ray

logged, is_logged = [], threading.Event()
class Log(logging.Handler):
    def emit(self, record):
        logged.append(record.getMessage())
        is_logged.set()
logging.getLogger("runner").addHandler(Log(logging.WARNING))
rays_own = worker.print_worker_logs
start_local_ray(1)
for _ in range(100):  # a message that comes before Ray listens is lost
    utils.push_error_to_driver(worker.global_worker, "task", "a task has failed\\nand a log of it")
    if is_logged.wait(1):
        break
stop_ray()
assert logged[0] == "Ray: a task has failed", logged
assert worker.print_worker_logs is rays_own
"""


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Path, str]]:
    """Ray's folder and the address of a cluster that somebody has started with `ray start` on this machine."""
    with hosted_ray() as running:
        yield running


def client(folder: Path, address: str = "", **variables: str) -> dict[str, Any]:
    command = [sys.executable, "-c", CLIENT, address]
    done = subprocess.run(
        command, env=environment_of(folder, **variables), capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_a_cluster_that_merely_runs_here_is_not_joined(running: tuple[Path, str]) -> None:
    folder, address = running
    result = client(folder)
    assert result["address"] != address
    (note,) = result["notes"]
    assert note.startswith("starting Ray on this machine, only for this command, with ")
    assert result["left"]


def test_a_cluster_that_is_named_is_joined(running: tuple[Path, str]) -> None:
    folder, address = running
    result = client(folder, "auto")
    assert (result["address"], result["num_cpus"]) == (address, 3.0)
    assert result["notes"] == [
        "joining the Ray cluster at auto (ray.address) ...",
        f"joined the Ray cluster at {address}: 1 node, CPU 3, GPU 0",
    ]
    by_variable = client(folder, RAY_ADDRESS=address)
    assert "error" not in by_variable, by_variable["error"]
    assert by_variable["address"] == address
    assert by_variable["notes"][0] == f"joining the Ray cluster at {address} (RAY_ADDRESS) ..."


def test_an_address_without_a_cluster_is_told(running: tuple[Path, str]) -> None:
    result = client(running[0], "no_address")
    assert "cannot join the Ray cluster: " in result["error"]
    assert "   where         ray.address\n   got           no_address\n" in result["error"]


@pytest.mark.slow
def test_what_ray_tells_goes_to_the_log(running: tuple[Path, str]) -> None:
    """Not to stdout, where Ray prints it, among results."""
    command = [sys.executable, "-c", TOLD_BY_RAY]
    done = subprocess.run(
        command, env=environment_of(running[0]), capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_held_out_data_read_by_ray_are_read_in_the_cluster_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(config: RayConfig, *_: Any) -> None:
        raise ConfigError([Problem(f"joins {config.address}")])

    monkeypatch.setattr("runner.experiment.ray_resources.connected", connect)
    data = tmp_path / "data.csv"
    data.write_text("eps_id,t,obs,actions,rewards\n0,0,0,0,1\n")
    held_out = [f"evaluation.offline_evaluation_input_={data}", "evaluation.offline_evaluation_interval=1"]
    named = ["offline.input_read_method=read_text", "ray.address=10.0.0.1:6379"]
    with pytest.raises(ConfigError, match=r"joins 10\.0\.0\.1:6379"):
        Trainer.from_experiment("ppo_cartpole", [*held_out, *named])


KILLS_A_PROCESS_OF_RAY = """
import os, signal, threading
from ray._private import worker
from runner.cluster import connected
from runner.config.blocks import RayConfig
notes, is_told = [], threading.Event()
def note(text):
    notes.append(text)
    if "has ended" in text:
        is_told.set()
with connected(RayConfig(), {"CPU": 1}, "env_runners.num_env_runners", note):
    (gcs,) = worker._global_node.all_processes["gcs_server"]
    os.kill(gcs.process.pid, signal.SIGKILL)
    assert is_told.wait(50), notes
    print(notes[-1], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)  # Ray needs a minute to end it
"""


def test_the_end_of_a_process_of_ray_is_reported_while_calls_of_ray_wait() -> None:
    command = [sys.executable, "-c", KILLS_A_PROCESS_OF_RAY]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    ends = "Ray ends this command within a minute; continue a run with resume, a sweep with the same command"
    assert done.stdout == f"Ray's gcs_server (exit code -9) has ended: {ends}\n", done.stderr
