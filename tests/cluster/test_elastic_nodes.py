"""Runs whose number of env runners follows the nodes of a cluster: some join, and some are killed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.nodes import Nodes
from tests.conftest import QUICK, WAIT_S, Start, num_lines, progress_of, result_of, wait_until

pytestmark = pytest.mark.ray
SMALL = ("evaluation=none", "tracking=none", "env_runners.num_envs_per_env_runner=4", "module.fcnet_hiddens=[4]")
EXPERIMENTS = {
    "bulk_sync": ("+experiment=ppo_cartpole", *QUICK),
    "async": ("+experiment=impala_cartpole", *SMALL, "algorithm.min_sample_timesteps_per_iteration=512"),
    "gradients": ("+experiment=a3c_cartpole", *SMALL, "algorithm.min_sample_timesteps_per_iteration=512"),
}
ONE_PER_NODE = ("env_runners.num_cpus_per_env_runner=2", "hydra.run.dir=run", "tracking.display=plain")
ENDLESS = ("stop.env_runners.episode_return_mean=100000", "stop.num_env_steps_sampled_lifetime=1000000000")
NUM, RESTARTS = "fault_tolerance/num_healthy_workers", "fault_tolerance/num_remote_worker_restarts"


def lines_so_far(folder: Path) -> list[dict[str, Any]]:
    """The iterations of a run that goes on; the newest line may be in mid-write."""
    whole, _, _ = (folder / "run" / "progress.jsonl").read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def num_sampling(folder: Path) -> int:
    """The env runners of the newest iteration."""
    return int(lines_so_far(folder)[-1][NUM]) if num_lines(folder / "run") else 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", EXPERIMENTS)
def test_a_run_grows_with_nodes_that_join_and_goes_on_without_lost_ones(
    mode: str, nodes: Nodes, start_main: Start, tmp_path: Path
) -> None:
    number = "env_runners.num_env_runners={min: 1, max: 3}"
    ends = (*ENDLESS, f"+stop.{RESTARTS}=1", "checkpoint.every_iterations=null")
    address = f"ray.address={nodes.cluster.address}"
    run = start_main(*EXPERIMENTS[mode], *ONE_PER_NODE, number, *ends, address)
    wait_until(lambda: num_sampling(tmp_path) == 2, run)
    assert lines_so_far(tmp_path)[0][NUM] == 2, "it starts with what has a place"
    nodes.make(4)
    wait_until(lambda: num_sampling(tmp_path) == 3, run)
    assert len(nodes.of_runners()) == 3, "at most"
    used = nodes.of_runners()
    nodes.kill(next(iter(set(nodes.workers) - set(used))))  # the lost ones have no other place
    nodes.kill(used[0])
    nodes.kill(used[1])
    wait_until(lambda: num_sampling(tmp_path) == 1, run)
    before = lines_so_far(tmp_path)[-1]
    wait_until(lambda: num_lines(tmp_path / "run") > int(before["training_iteration"]) + 3, run)
    last = lines_so_far(tmp_path)[-1]
    assert last["num_env_steps_trained_lifetime"] > before["num_env_steps_trained_lifetime"]
    assert last[RESTARTS] == 0, "none has come back"
    nodes.make(2)
    out, err = run.communicate(timeout=WAIT_S)
    assert run.returncode == 0, err
    assert result_of(tmp_path / "run")["status"] == "finished"
    numbers = [int(line) for line in re.findall(r"^(\d) env runners? (?:is|are) sampling now$", out, re.MULTILINE)]
    assert numbers[:2] == [2, 3], out
    assert 1 in numbers, out


@pytest.mark.slow
def test_a_run_is_resumed_with_the_runners_that_have_a_place(nodes: Nodes, start_main: Start, tmp_path: Path) -> None:
    def ended(*arguments: str) -> str:
        run = start_main(*arguments)
        out, err = run.communicate(timeout=WAIT_S)
        assert run.returncode == 0, err
        wait_until(lambda: not nodes.of_runners())
        return out

    number = "env_runners.num_env_runners={min: 1, max: 2}"
    address = f"ray.address={nodes.cluster.address}"
    ended(*EXPERIMENTS["async"], *ONE_PER_NODE, number, *ENDLESS, "stop.training_iteration=3", address)
    nodes.kill_idle(1)
    fewer = ended("resume", "run", "stop.training_iteration=6")
    told = "the checkpoint has 2 env runners, and the cluster has resources for 1: aborting the episodes of 1"
    assert told in " ".join(fewer.split()), fewer
    nodes.make(2)
    more = ended("resume", "run", "stop.training_iteration=9")
    told = (
        "the checkpoint has 1 env runner, and the cluster has resources for 2: "
        "continuing the episodes of 1, starting new episodes in 1"
    )
    assert told in " ".join(more.split()), more
    lines = progress_of(tmp_path / "run")
    assert [line["training_iteration"] for line in lines] == list(range(1, 10))
    assert [lines[index][NUM] for index in (2, 5, 8)] == [2, 1, 2]
