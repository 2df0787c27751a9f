"""Clusters of several nodes, as processes of this machine: places of actors, and what the loss of a node means."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cluster.nodes import Nodes
from tests.conftest import QUICK, ROOT, WAIT_S, Start, lines_of, num_lines, progress_of, result_of, wait_until

pytestmark = pytest.mark.ray
TWO_RUNNERS = ("env_runners.num_env_runners=2", "hydra.run.dir=run", "checkpoint.every_iterations=null")
PPO = ("+experiment=ppo_cartpole", *QUICK)
IMPALA = (
    "+experiment=impala_cartpole",
    "algorithm.min_sample_timesteps_per_iteration=512",
    "env_runners.num_envs_per_env_runner=4",
    "evaluation=none",
    "tracking=none",
    "stop.env_runners.episode_return_mean=1000",
)
BC = (
    "+experiment=bc_cartpole",
    f"offline.input_={ROOT / 'tests' / 'data' / 'rllib_cartpole_episodes'}",
    "offline.materialize_mapped_data=false",
    "offline.dataset_num_iters_per_learner=3",
    "module.fcnet_hiddens=[16]",
    "evaluation.evaluation_interval=null",
    "tracking=none",
    "checkpoint.metric=training_iteration",
    "~stop.evaluation.env_runners.episode_return_mean",
    "stop.training_iteration=100000",
)
RESTARTS = "fault_tolerance/num_remote_worker_restarts"


def start_on(nodes: Nodes, start_main: Start, *arguments: str) -> subprocess.Popen[str]:
    return start_main(*TWO_RUNNERS, *arguments, f"ray.address={nodes.cluster.address}", "tracking.display=plain")


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "num_cpus", "num_nodes"), [("SPREAD", 0.5, 2), ("PACK", 1, 1)])
def test_runners_are_spread_over_nodes_or_packed_on_one(
    strategy: str, num_cpus: float, num_nodes: int, nodes: Nodes, start_main: Start, tmp_path: Path
) -> None:
    """By default Ray would do the other: it fills half of a node, and then takes the next one."""
    chosen = (f"env_runners.scheduling_strategy={strategy}", f"env_runners.num_cpus_per_env_runner={num_cpus}")
    run = start_on(nodes, start_main, *PPO, *chosen, "stop.training_iteration=100000")
    wait_until(lambda: num_lines(tmp_path / "run") > 0, run)
    used = nodes.of_runners()
    assert (len(used), len(set(used))) == (2, num_nodes)


@pytest.mark.slow
def test_a_deterministic_run_has_the_same_numbers_in_one_process_and_on_three_nodes(
    nodes: Nodes, start_main: Start, tmp_path: Path
) -> None:
    in_order = "{ParallelRollouts: {mode: async, num_async: 2, deterministic: true}}"
    train = (
        *IMPALA,
        f"algorithm.plan=[{in_order},ConcatBatches,TrainOneStep]",
        "env_runners.num_env_runners=2",
        "stop.training_iteration=4",
    )
    inline = start_main(*train, "engine=inline", "hydra.run.dir=inline")
    spread = ("env_runners.scheduling_strategy=SPREAD", f"ray.address={nodes.cluster.address}", "hydra.run.dir=spread")
    run = start_main(*train, *spread)
    wait_until(lambda: len(set(nodes.of_runners())) == 2, run)
    for process in (inline, run):
        _, err = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, err
    assert lines_of(tmp_path / "spread") == lines_of(tmp_path / "inline")


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "num_cpus", "num_nodes"), [("SPREAD", 0.5, 2), ("PACK", 1, 1)])
def test_learners_are_spread_over_nodes_or_packed_on_one(
    strategy: str, num_cpus: float, num_nodes: int, nodes: Nodes, start_main: Start, tmp_path: Path
) -> None:
    """Their gradients are joined over what lies between them, too: lines are written."""
    chosen = (f"learners.scheduling_strategy={strategy}", f"learners.num_cpus_per_learner={num_cpus}")
    here = ("env_runners.num_env_runners=0", "learners.num_learners=2", "stop.training_iteration=100000")
    run = start_on(nodes, start_main, *PPO, *chosen, *here)
    wait_until(lambda: num_lines(tmp_path / "run") > 0, run)
    used = nodes.of_learners()
    assert (len(used), len(set(used))) == (2, num_nodes)


@pytest.mark.slow
def test_prelearners_are_spread_over_nodes(nodes: Nodes, start_main: Start, tmp_path: Path) -> None:
    spread = "ray_remote_args: {scheduling_strategy: SPREAD}"
    run = start_on(nodes, start_main, *BC, f"offline.map_batches_kwargs={{concurrency: 2, num_cpus: 0.5, {spread}}}")
    wait_until(lambda: num_lines(tmp_path / "run") > 0, run)
    assert len(set(nodes.of_prelearners())) == 2


@pytest.mark.slow
def test_prelearners_are_where_their_custom_resources_are(nodes: Nodes, start_main: Start, tmp_path: Path) -> None:
    reader = nodes.add(reader=2)
    run = start_on(nodes, start_main, *BC, "offline.map_batches_kwargs={concurrency: 2, resources: {reader: 1}}")
    wait_until(lambda: num_lines(tmp_path / "run") > 0, run)
    assert nodes.of_prelearners() == [reader, reader]


@pytest.mark.slow
@pytest.mark.parametrize("experiment", [PPO, IMPALA], ids=["synchronous", "asynchronous"])
def test_runners_of_a_lost_node_go_on_on_others_and_on_ones_that_join(
    experiment: tuple[str, ...], nodes: Nodes, start_main: Start, tmp_path: Path
) -> None:
    spread = ("env_runners.scheduling_strategy=SPREAD", "stop.training_iteration=100000", "seed=1")
    run = start_on(nodes, start_main, *experiment, *spread)
    wait_until(lambda: num_lines(tmp_path / "run") > 1, run)
    lost, left = nodes.of_runners()
    nodes.kill(lost)
    lines_while_alone = set()

    def is_replaced() -> bool:
        lines = num_lines(tmp_path / "run")
        if nodes.of_runners() == [left]:
            lines_while_alone.add(lines)
        return bool(lines_while_alone) and nodes.of_runners() == [left, left]

    wait_until(is_replaced, run)
    if experiment is IMPALA:
        assert len(lines_while_alone) > 2, "the other one goes on while a new one starts"
    nodes.make(2)
    (joined,) = set(nodes.workers) - {left}
    nodes.kill(left)
    wait_until(lambda: nodes.of_runners() == [joined, joined], run)
    before = num_lines(tmp_path / "run")
    wait_until(lambda: num_lines(tmp_path / "run") > before + 2, run)
    last = progress_of(tmp_path / "run")[-1]
    assert last[RESTARTS] >= 3  # more where one was placed on a node of whose loss the head did not know yet
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=WAIT_S)
    assert run.returncode == 130, err


@pytest.mark.slow
@pytest.mark.parametrize("number", ["2", "{min: 2, max: 4}"])
def test_a_run_without_room_for_a_lost_runner_ends_and_says_so(
    number: str, nodes: Nodes, start_main: Start, tmp_path: Path
) -> None:
    large = ("env_runners.num_cpus_per_env_runner=2", "stop.training_iteration=100000")
    soon = ("ray.actor_start_timeout_s=30", "env_runners.sample_timeout_s=30")
    run = start_on(nodes, start_main, *PPO, *large, *soon, f"env_runners.num_env_runners={number}")
    wait_until(lambda: num_lines(tmp_path / "run") > 1, run)
    nodes.kill(nodes.of_runners()[0])
    out, err = run.communicate(timeout=WAIT_S)
    assert run.returncode == 1
    assert "the Ray cluster has not had enough free resources for 30 s: 1 env runner needs CPU 2\n" in err
    assert re.search(
        r"where +env runner [01], ray.actor_start_timeout_s\n +got +free: CPU 0 of 2, GPU 0 of 0\n", err
    ), err
    assert "waiting for resources for 10 s: 1 env runner needs CPU 2; free: CPU 0 of 2, GPU 0 of 0" in out
    assert result_of(tmp_path / "run")["status"] == "failed"


@pytest.mark.slow
def test_an_actor_that_no_node_can_hold_is_refused_at_once(nodes: Nodes, start_main: Start, tmp_path: Path) -> None:
    large = ("env_runners.num_cpus_per_env_runner=3", "env_runners.num_env_runners=1")
    run = start_on(nodes, start_main, *PPO, *large)
    _, err = run.communicate(timeout=WAIT_S)
    assert run.returncode == 2
    assert "no node of the Ray cluster has enough resources for one of this run's actors" in err
    assert re.search(r"got +CPU 3\n +expected +CPU 0 \(1 node\); CPU 2 \(2 nodes\)\n", err), err
    assert not (tmp_path / "run" / "progress.jsonl").exists()
