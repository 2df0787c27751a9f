"""SIGKILL at random moments of every experiment, resumed until its end, which equals the end of an undisturbed run."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.chaos.conftest import Scenario, Start
from tests.chaos.killed_run import LATER_WRITES, WRITES_OF_SEGMENTS, KilledRun
from tests.chaos.processes import RUNNER, Command
from tests.chaos.runs import (
    EXTERNAL,
    NOT_KILLED,
    NUM_ITERATIONS,
    PLANS,
    RECORDED,
    SAMPLED,
    assert_equal_ends,
)
from tests.conftest import ROOT, lines_of, marked_but, progress_of

CLIENTS = ROOT / "examples" / "external"
NOT_FOR_CHAOS_ALONE = ("dqn_cartpole", "ppo_cartpole")


def test_every_experiment_is_killed() -> None:
    files = {path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml")}
    assert files == {*SAMPLED, *RECORDED, *EXTERNAL, *NOT_KILLED}


def assert_killed_is_straight(
    begin: Sequence[str], start: Start, folder: Path, chance: random.Random, scenario: Scenario
) -> None:
    """Kill a run three times, once within a write; it ends like a run that is left alone."""
    run = KilledRun(start, folder / "killed", begin, chance, scenario)
    run.kill_at_any_moment()
    run.kill_in_write()
    run.kill_at_any_moment()
    run.finish()
    straight = start(*RUNNER, *begin, f"hydra.run.dir={folder / 'straight'}")
    assert straight.wait() == 0, straight.output
    assert_equal_ends(folder / "straight", run.run_dir)
    scenario.ends(f"resumed each time; {NUM_ITERATIONS} iterations and the last checkpoint equal bit for bit")


@pytest.mark.slow
@pytest.mark.parametrize("experiment", marked_but(pytest.mark.chaos, SAMPLED, *NOT_FOR_CHAOS_ALONE))
def test_killed_experiment(
    experiment: str, start: Start, tmp_path: Path, chance: random.Random, scenario: Scenario
) -> None:
    assert_killed_is_straight([f"+experiment={experiment}", *SAMPLED[experiment]], start, tmp_path, chance, scenario)


@pytest.mark.chaos
@pytest.mark.parametrize("plan", [*PLANS])
def test_killed_plan(plan: str, start: Start, tmp_path: Path, chance: random.Random, scenario: Scenario) -> None:
    assert_killed_is_straight(["+experiment=a2c_cartpole", *PLANS[plan]], start, tmp_path, chance, scenario)


KILLED_TWENTY_TIMES = (
    *("a3c_cartpole", "apex_cartpole", "appo_cartpole", "impala_cartpole"),
    *("dqn_cartpole", "her_bit_flipping", "rainbow_cartpole", "sac_cartpole_discrete", "sac_pendulum"),
    *("td3_pendulum", "tqc_pendulum"),
)


@pytest.mark.chaos
@pytest.mark.parametrize("experiment", KILLED_TWENTY_TIMES)
def test_killed_twenty_times(
    experiment: str, start: Start, tmp_path: Path, chance: random.Random, scenario: Scenario
) -> None:
    """Every second kill is within a checkpoint's write: of a segment, of a link, of the rest."""
    num_kills, num_iterations = 20, 180
    stop = (f"stop.training_iteration={num_iterations}", "stop.num_env_steps_sampled_lifetime=1000000")
    begin = [f"+experiment={experiment}", *SAMPLED[experiment], *stop]
    run = KilledRun(start, tmp_path / "killed", begin, chance, scenario, num_iterations=num_iterations)
    for number in range(num_kills):
        if number % 2:
            run.kill_in_write(WRITES_OF_SEGMENTS)
        else:
            run.kill_at_any_moment()
    run.finish()
    straight = start(*RUNNER, *begin, f"hydra.run.dir={tmp_path / 'straight'}")
    assert straight.wait() == 0, straight.output
    assert_equal_ends(tmp_path / "straight", run.run_dir)
    assert scenario.num_injections == num_kills
    scenario.ends("resumed each time; weights, replay, priorities and the last checkpoint equal bit for bit")


RETURN, STEPS = "env_runners/episode_return_mean", "num_env_steps_sampled_lifetime"


class FreeRun(NamedTuple):
    """A return of 450 by a metric within so many env steps: what an experiment promises, or less."""

    num_env_steps: int
    steps_an_iteration: int = 4000
    metric: str = RETURN


FREE = {
    "a3c_cartpole": FreeRun(800_000),
    "apex_cartpole": FreeRun(150_000, 1000, f"evaluation/{RETURN}"),  # of 250,000, which take long
    "appo_cartpole": FreeRun(400_000),
    "impala_cartpole": FreeRun(1_000_000),
}


@pytest.mark.ray
@pytest.mark.chaos
@pytest.mark.parametrize("experiment", FREE)
def test_free_runs_learn_whenever_they_are_killed(
    experiment: str, start: Start, tmp_path: Path, chance: random.Random, scenario: Scenario
) -> None:
    """The driver dies twenty times, with samples in flight; each iteration is there once at the end."""
    num_env_steps, steps_an_iteration, metric = FREE[experiment]
    num_kills, num_iterations = 20, num_env_steps // steps_an_iteration
    stop = (f"stop.training_iteration={num_iterations}", f"~stop.{metric}", f"~stop.{STEPS}")
    begin = [f"+experiment={experiment}", "tracking=none", "checkpoint.every_iterations=3", *stop]
    run = KilledRun(start, tmp_path / "run", begin, chance, scenario, num_iterations=num_iterations)
    for _ in range(num_kills):
        run.kill_at_any_moment()
    run.finish()
    assert scenario.num_injections == num_kills
    assert max(line.get(metric) or 0 for line in progress_of(run.run_dir) if line[STEPS] <= num_env_steps) >= 450
    scenario.ends(f"resumed each time; a return of 450 within {num_env_steps:,} env steps")


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder with episodes that a short run of an experiment recorded."""
    folder = tmp_path_factory.mktemp("recorded")

    def record(experiment: str) -> Path:
        data = folder / experiment
        if not data.exists():
            overrides = [*SAMPLED[experiment], f"offline.output={data}", f"hydra.run.dir={data}-run"]
            command = Command(folder, *RUNNER, f"+experiment={experiment}", *overrides)
            assert command.wait() == 0, command.output
        return data

    return record


@pytest.mark.ray
@pytest.mark.chaos
@pytest.mark.parametrize("experiment", [*RECORDED])
def test_killed_offline_experiment(
    experiment: str,
    recorded: Callable[[str], Path],
    start: Start,
    tmp_path: Path,
    chance: random.Random,
    scenario: Scenario,
) -> None:
    overrides, recorded_by = RECORDED[experiment]
    begin = [f"+experiment={experiment}", *overrides, f"offline.input_={recorded(recorded_by)}"]
    assert_killed_is_straight(begin, start, tmp_path, chance, scenario)


# -- simulators that connect -------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def without_counts_of_server(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return lines without what a restart changes: weights have new numbers, and what is read again arrives at once."""
    return [{name: value for name, value in line.items() if not name.startswith("rllink/")} for line in lines]


@pytest.mark.chaos
@pytest.mark.parametrize("experiment", [*EXTERNAL])
def test_killed_external_experiment(
    experiment: str, start: Start, tmp_path: Path, chance: random.Random, scenario: Scenario
) -> None:
    """What was acknowledged is learned from once, in the same batches; what simulators do afterwards is new."""
    overrides, (script, *arguments) = EXTERNAL[experiment]
    address = f"env.port={free_port()}"
    run = KilledRun(
        start, tmp_path / "run", [f"+experiment={experiment}", *overrides, address], chance, scenario, [address]
    )
    port = address.removeprefix("env.port=")
    client = start("-m", "tests.chaos.counting_client", str(CLIENTS / script), "--port", port, *arguments)
    run.kill_in_write(LATER_WRITES)
    before = without_counts_of_server(lines_of(run.run_dir))
    run.finish()
    assert client.wait() == 0, client.output
    counts = json.loads(client.output.splitlines()[-1])
    last = progress_of(run.run_dir)[-1]
    received, acted = last["rllink/num_env_steps_received"], last["rllink/num_env_steps_acted"]
    if "server" in arguments:  # steps since the checkpoint were acted in again
        assert last["num_env_steps_sampled_lifetime"] <= acted <= counts["actions"]
        scenario.ends(f"resumed; {acted} of {counts['actions']} steps learned from, none twice")
        return
    assert without_counts_of_server(lines_of(run.run_dir))[: len(before)] == before
    num_agents = 2 if "multi_agent" in experiment else 1
    assert received <= counts["acknowledged"] + counts["unanswered"]
    assert received * num_agents >= counts["acknowledged"]
    scenario.ends(
        f"resumed; the first {len(before)} iterations equal bit for bit, all {counts['acknowledged']} acknowledged "
        "steps learned from once"
    )
