"""Whole runs that record what simulators of several agents send: killed, resumed, inspected, converted and cloned."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, WAIT_S, Run, addresses_of, num_lines, wait_until
from tests.rllink.test_recording_agents import recorded_in

CLIENT = Path(__file__).parent / "agents_client.py"
RUN = [
    "+experiment=ppo_external_multi_agent_cartpole",
    "rllink=off_policy",
    "tracking=none",
    "module.fcnet_hiddens=[8]",
]
RUN += ["algorithm.train_batch_size_per_learner=200", "algorithm.minibatch_size=null", "algorithm.num_epochs=1"]
RUN += ["checkpoint.every_iterations=3", "stop.training_iteration=10", "env.validate_observations=off"]


def played_in(log: Path) -> dict[int, dict[str, Any]]:
    """Return number -> agents of the env episodes that a client has played to the end, in the order of their ends."""
    return {one["number"]: one["agents"] for one in map(json.loads, log.read_text().splitlines())}


def check_recorded_as_played(data: Path, log: Path) -> int:
    """Check that the first env episodes that were played are what is recorded, and return their number."""
    recorded: dict[int, dict[str, Any]] = {}
    for is_terminated, _, agents in recorded_in(data):
        (number,) = {int(obs[1]) for one in agents.values() for obs in one["obs"]}
        assert number not in recorded, "each once"
        assert is_terminated == all(one["is_terminated"] for one in agents.values())
        names = ("obs", "actions", "rewards", "is_terminated")
        recorded[number] = {agent: {name: one[name] for name in names} for agent, one in agents.items()}
    first_played = dict(list(played_in(log).items())[: len(recorded)])
    assert recorded == first_played
    return len(recorded)


class Processes:
    """Processes that are gone at the end of a test."""

    def __init__(self) -> None:
        self._all: list[subprocess.Popen[str]] = []

    def start(self, *command: object) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, *map(str, command)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self._all.append(process)
        return process

    def end(self) -> None:
        for process in self._all:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def processes() -> Any:
    made = Processes()
    yield made
    made.end()


def record(processes: Processes, folder: Path, inference: str) -> tuple[Path, Path, int]:
    """Run a server and a client; return the recording, the client's log, and how many env episodes are recorded."""
    run_dir, data, log = folder / "run", folder / "data", folder / "log.jsonl"
    server = processes.start("-m", "runner", *RUN, "env.port=0", f"hydra.run.dir={run_dir}", f"offline.output={data}")
    port = addresses_of(run_dir)[0].rpartition(":")[2]
    client = processes.start(CLIENT, "--port", port, "--log", log, "--inference", inference)
    output, _ = server.communicate(timeout=WAIT_S)
    assert (server.returncode, client.wait(WAIT_S)) == (0, 0)
    num_recorded = check_recorded_as_played(data, log)
    assert num_recorded > 100
    assert f"recorded {num_recorded:,} episodes" in output
    return data, log, num_recorded


@pytest.mark.slow
def test_what_the_server_acted_in_is_recorded(processes: Processes, tmp_path: Path) -> None:
    record(processes, tmp_path, "server")


@pytest.mark.slow
@pytest.mark.ray
def test_recorded_inspected_converted_and_cloned(run_main: Run, processes: Processes, tmp_path: Path) -> None:
    data, log, num_recorded = record(processes, tmp_path, "client")
    inspected = run_main("inspect", str(data))
    assert inspected.code == 0
    assert re.search(r"agents +agent_[01], agent_[01]", inspected.out)
    assert re.search(rf"episodes +{num_recorded:,} \(", inspected.out)
    assert "agent_1, module default_policy" in inspected.out

    converted = run_main(
        "convert",
        f"offline.input_={data}",
        f"offline.output={tmp_path / 'steps'}",
        "offline.output_write_episodes=false",
    )
    assert converted.code == 0
    num_agents = sum(len(agents) for agents in list(played_in(log).values())[:num_recorded])
    assert f"wrote  {num_agents:,} episodes" in converted.out

    cloned = ["+experiment=bc_multi_agent_cartpole", f"offline.input_={data}", "tracking=none"]
    cloned += ["stop.training_iteration=2", "evaluation.evaluation_interval=2", "evaluation.evaluation_duration=1"]
    cloned += ["offline.dataset_num_iters_per_learner=3", "module.fcnet_hiddens=[8]"]
    cloned += ["algorithm.train_batch_size_per_learner=64", f"hydra.run.dir={tmp_path / 'bc'}"]
    cloning = processes.start("-m", "runner", *cloned)
    cloning.communicate(timeout=WAIT_S)
    assert cloning.returncode == 0
    last = json.loads((tmp_path / "bc" / "progress.jsonl").read_text().splitlines()[-1])
    assert all(last[f"learners/{module}/policy_loss"] > 0 for module in ("p0", "p1"))


@pytest.mark.slow
def test_killed_and_resumed_while_agents_play(processes: Processes, tmp_path: Path) -> None:
    """SIGKILL between two checkpoints: nothing that was acknowledged is lost, and nothing twice."""
    run_dir, data, log = tmp_path / "run", tmp_path / "data", tmp_path / "log.jsonl"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    more = [f"env.port={port}", f"hydra.run.dir={run_dir}", f"offline.output={data}"]
    server = processes.start("-m", "runner", *RUN, *more)
    addresses_of(run_dir)
    client = processes.start(CLIENT, "--port", port, "--log", log)
    for number in (5, 8):
        wait_until(lambda number=number: num_lines(run_dir) >= number)
        server.send_signal(signal.SIGKILL)
        server.wait(WAIT_S)
        server = processes.start("-m", "runner", "resume", run_dir)
    output, _ = server.communicate(timeout=WAIT_S)
    assert (server.returncode, client.wait(WAIT_S)) == (0, 0)
    num_recorded = check_recorded_as_played(data, log)
    assert num_recorded > 100
    assert f"recorded {num_recorded:,} episodes" in output
    assert " incomplete)" not in output


@pytest.mark.slow
@pytest.mark.ray
def test_servers_in_ray_actors_record_what_each_gets(processes: Processes, tmp_path: Path) -> None:
    run_dir, data = tmp_path / "run", tmp_path / "data"
    more = ["env.port=0", f"hydra.run.dir={run_dir}", f"offline.output={data}", "env_runners.num_env_runners=2"]
    server = processes.start("-m", "runner", *RUN, *more, "stop.training_iteration=3")
    logs = []
    for number, address in enumerate(addresses_of(run_dir)):
        logs.append(tmp_path / f"{number}.jsonl")
        port = address.rpartition(":")[2]
        processes.start(CLIENT, "--port", port, "--log", logs[-1], "--seed", number)
    output, _ = server.communicate(timeout=WAIT_S)
    assert server.returncode == 0
    played = {number: agents for log in logs for number, agents in played_in(log).items()}
    recorded = recorded_in(data)
    numbers = [int(next(iter(agents.values()))["obs"][0][1]) for _, _, agents in recorded]
    assert len(set(numbers)) == len(recorded) > 20
    assert {number // 100_000 for number in numbers} == {0, 1}
    for number, (_, _, agents) in zip(numbers, recorded, strict=True):
        assert {agent: one["obs"] for agent, one in agents.items()} == {
            agent: one["obs"] for agent, one in played[number].items()
        }
    assert f"recorded {len(recorded):,} episodes" in output
