"""External simulators reach the returns that each experiment promises, with two clients."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, addresses_of
from tests.support.configs import config_from

EXAMPLES = ROOT / "examples" / "external"
RETURN = "env_runners/episode_return_mean"
# Name of a test -> experiment and overrides, the client with its arguments, promised return.
RUNS = {
    "client-side": (["ppo_external_cartpole"], ["cartpole_client.py"], 450),
    "server-side": (["ppo_external_cartpole_remote"], ["cartpole_client.py", "--inference", "server"], 450),
    "off-policy": (["ppo_external_cartpole", "rllink=off_policy"], ["cartpole_client.py"], 450),
    "several agents": (["ppo_external_multi_agent_cartpole"], ["multi_agent_client.py"], 900),
}


@pytest.mark.learning
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", RUNS)
def test_two_clients_reach_what_is_promised(name: str, seed: int, tmp_path: Path) -> None:
    last = train(name, seed, tmp_path)
    print(f"\n{name} {seed}: {last[RETURN]:.1f} after {last['num_env_steps_sampled_lifetime']:,} env steps", end="")
    assert last[RETURN] >= RUNS[name][2]


def train(name: str, seed: int, run_dir: Path) -> dict[str, float]:
    """The last metrics of a run with two clients."""
    (experiment, *overrides), (script, *arguments), _ = RUNS[name]
    more = [f"seed={seed}", "env.port=0", "tracking=none", f"hydra.run.dir={run_dir}"]
    command = [sys.executable, "-m", "runner", f"+experiment={experiment}", *overrides, *more]
    processes = [subprocess.Popen(command, cwd=ROOT)]
    try:
        port = addresses_of(run_dir)[0].rpartition(":")[2]
        for number in range(2):
            client = [sys.executable, EXAMPLES / script, "--port", port, "--seed", str(10 * seed + number), *arguments]
            processes.append(subprocess.Popen(client))
        assert [process.wait(600) for process in processes] == [0, 0, 0]
    finally:
        for process in processes:
            process.kill()
    last: dict[str, float] = json.loads((run_dir / "progress.jsonl").read_text().splitlines()[-1])
    return last


def test_promises_are_those_of_the_experiments() -> None:
    for (experiment, *_), _, promised in RUNS.values():
        stop = config_from(f"+experiment={experiment}").stop
        assert stop[RETURN] == promised
    files = {path.stem for path in (ROOT / "conf" / "experiment").glob("ppo_external_*.yaml")}
    assert files == {experiment for (experiment, *_), _, _ in RUNS.values()}
