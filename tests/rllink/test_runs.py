"""Whole runs: what is configured, printed, interrupted and learned."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from runner.config.errors import ConfigError
from runner.module_building import make_module_specs
from runner.rllink.announcement import external_text
from tests.conftest import ROOT, WAIT_S, Run, addresses_of
from tests.rllink.conftest import EXPERIMENT
from tests.support.configs import config_from

BOX = "{space: box, low: -1, high: 1, shape: [3], dtype: float32}"
CLIENT = ROOT / "examples" / "external" / "cartpole_client.py"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([EXPERIMENT, "env.port=70000"], "env.port"),
        ([EXPERIMENT, "env=external"], "no environment is chosen"),
        ([EXPERIMENT, f"env.observation_space={BOX}"], r"env\.observation_space is set without env\.action_space"),
        (
            [EXPERIMENT, "env_runners.num_envs_per_env_runner=4"],
            "num_envs_per_env_runner has no effect on external simulators",
        ),
        (
            [EXPERIMENT, "rllink.max_receiving_bytes=200000000"],
            "max_receiving_bytes is too small for messages of rllink.max_body_bytes",
        ),
        ([EXPERIMENT, "rllink.tls_key=nowhere.pem"], "without rllink.tls_certificate"),
        ([EXPERIMENT, "rllink.tls_certificate=nowhere.pem"], r"tls_certificate: the file does not exist"),
        ([EXPERIMENT, "rllink.tokn=x"], "tokn"),
        (
            ["+experiment=ppo_cartpole", f"env.observation_space={BOX}"],
            r"env\.observation_space applies to external simulators only",
        ),
    ],
)
def test_mistakes_are_told_before_anything_runs(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_from(*overrides)


def test_the_printed_commands_need_a_token_like_the_server() -> None:
    config = config_from(EXPERIMENT, "rllink.token=secret")
    text = external_text(config, ["127.0.0.1:5556"], make_module_specs(config).values())
    assert "runner rllink check 127.0.0.1:5556 --token TOKEN\n" in text
    assert text.endswith("--port 5556 --token TOKEN")


def test_an_address_that_is_taken(run_main: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = run_main(EXPERIMENT, f"env.port={port}", "hydra.run.dir=run", "tracking=none")
    assert outcome.code == 2
    assert f"cannot listen on 127.0.0.1:{port}" in outcome.err


@pytest.mark.slow
@pytest.mark.parametrize("num_env_runners", [0, pytest.param(1, marks=pytest.mark.ray)])
def test_ctrl_c_while_nobody_has_connected(num_env_runners: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "runner", EXPERIMENT, "env.port=0", f"hydra.run.dir={tmp_path}", "tracking=none"]
    number = f"env_runners.num_env_runners={num_env_runners}"
    run = subprocess.Popen([*command, number], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    said = ""
    while "waits for simulators" not in said:
        line = run.stdout.readline()
        assert line, "the run has ended"
        said += line
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=WAIT_S)
    assert run.returncode == 130
    assert "interrupted: SIGINT after iteration 0" in output
    assert "listens at 127.0.0.1:" in said


@pytest.mark.slow
@pytest.mark.ray
def test_remote_runners_have_an_address_each(tmp_path: Path) -> None:
    """Two runners on Ray actors, a client at each."""
    small = ["algorithm.train_batch_size_per_learner=400", "module.fcnet_hiddens=[8]", "stop.training_iteration=3"]
    command = [sys.executable, "-m", "runner", EXPERIMENT, "env.port=0", f"hydra.run.dir={tmp_path}", "tracking=none"]
    run = subprocess.Popen([*command, *small, "env_runners.num_env_runners=2"], cwd=ROOT)
    clients = []
    try:
        addresses = addresses_of(tmp_path)
        assert len(set(addresses)) == 2
        for address, inference in zip(addresses, ("client", "server"), strict=True):
            port = address.rpartition(":")[2]
            clients.append(subprocess.Popen([sys.executable, CLIENT, "--port", port, "--inference", inference]))
        assert run.wait(WAIT_S) == 0
        assert [client.wait(WAIT_S) for client in clients] == [0, 0]
    finally:
        for process in (run, *clients):
            process.kill()
            process.wait()
    last = json.loads((tmp_path / "progress.jsonl").read_text().splitlines()[-1])
    assert last["num_env_steps_sampled_lifetime"] >= 1200
    assert last["rllink/num_env_steps_acted"] >= 600
    assert last["rllink/num_clients"] == 2
