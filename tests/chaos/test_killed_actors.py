"""Ray actors and nodes of a Ray cluster that are killed at random moments: the run goes on and counts steps once."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.config.compose import compose_experiment
from tests.chaos.conftest import Scenario, Start
from tests.chaos.processes import RUNNER, Command, Process
from tests.chaos.runs import assert_each_iteration_once, newest_state
from tests.conftest import WAIT_S, lines_of, num_lines, progress_of, result_of

pytestmark = [pytest.mark.ray]
BATCH = 2000
TRAIN = (
    "+experiment=ppo_cartpole",
    "tracking=none",
    "algorithm.num_epochs=2",
    "stop.env_runners.episode_return_mean=10000",
    "stop.num_env_steps_sampled_lifetime=10000000",
    "checkpoint.every_iterations=2",
    "env_runners.num_envs_per_env_runner=4",
)
RAY_IS_GONE_S = 10.0
RUNNER_ACTOR, LEARNER_ACTOR, SHARD_ACTOR = "ray::EnvRunnerActor", "ray::LearnerActor", "ray::ReplayShardActor"


def actors(command: Command, name: str) -> list[Process]:
    """Return the processes of the actors of a class that are alive."""
    return command.processes(name)


def kill_one(command: Command, name: str, run_dir: Path, after_line: int, chance: random.Random) -> None:
    """SIGKILL of a random actor of a class, a random part of a second after a line of metrics."""
    assert command.reaches(lambda: num_lines(run_dir) >= after_line), command.output
    time.sleep(chance.uniform(0, 0.3))
    assert command.reaches(lambda: actors(command, name)), command.output  # all of them may be starting again
    chance.choice(sorted(actors(command, name), key=lambda process: process.pid)).kill()


def assert_whole(run_dir: Path, num_iterations: int, batch: int) -> dict[str, Any]:
    """Each iteration is there once, with all its steps; the last line of metrics."""
    assert_each_iteration_once(run_dir, num_iterations)
    lines = progress_of(run_dir)
    assert all(line["num_env_steps_sampled"] >= batch for line in lines)
    assert result_of(run_dir)["status"] == "finished"
    assert newest_state(run_dir), "the last checkpoint is whole"
    return lines[-1]


@pytest.mark.slow
def test_killed_env_runners(start: Start, tmp_path: Path, chance: random.Random, scenario: Scenario) -> None:
    run_dir = tmp_path / "run"
    overrides = [*TRAIN, "env_runners.num_env_runners=2", "evaluation.evaluation_interval=null"]
    sizes = [f"algorithm.train_batch_size_per_learner={BATCH}", "algorithm.minibatch_size=500"]
    command = start(*RUNNER, *overrides, *sizes, "stop.training_iteration=14", f"hydra.run.dir={run_dir}")
    for after_line in (2, 6):
        kill_one(command, RUNNER_ACTOR, run_dir, after_line, chance)
        scenario.inject("SIGKILL of an env runner")
    assert command.wait() == 0, command.output
    last = assert_whole(run_dir, 14, BATCH)
    assert last["fault_tolerance/num_remote_worker_restarts"] == 2
    scenario.ends("both replaced, each iteration has all its env steps, counted once")


@pytest.mark.chaos
def test_nothing_outlives_a_killed_run(start: Start, tmp_path: Path, chance: random.Random, scenario: Scenario) -> None:
    """Ray's processes and MLflow's are gone soon after the process that started them."""
    run_dir = tmp_path / "run"
    overrides = [each for each in TRAIN if each != "tracking=none"]
    command = start(*RUNNER, *overrides, "env_runners.num_env_runners=2", f"hydra.run.dir={run_dir}")
    assert command.reaches(lambda: num_lines(run_dir) >= 2), command.output
    time.sleep(chance.uniform(0, 1))
    num_processes = len(command.processes())
    command.kill()
    scenario.inject("SIGKILL of the driver")
    left = command.survivors(RAY_IS_GONE_S)
    assert left == [], [process.name for process in left]
    scenario.ends(f"all {num_processes} processes that it had started are gone within {RAY_IS_GONE_S:.0f} s")


@pytest.mark.chaos
def test_killed_evaluation_runners(start: Start, tmp_path: Path, chance: random.Random, scenario: Scenario) -> None:
    """Env runners step in the driver's process, so that all actors are evaluation runners."""
    run_dir = tmp_path / "run"
    evaluation = ("interval=1", "num_env_runners=2", "duration=6")
    overrides = [*TRAIN, *(f"evaluation.evaluation_{each}" for each in evaluation)]
    sizes = ["algorithm.train_batch_size_per_learner=500", "algorithm.minibatch_size=250"]
    command = start(*RUNNER, *overrides, *sizes, "stop.training_iteration=40", f"hydra.run.dir={run_dir}")
    for after_line in (3, 12, 20):
        kill_one(command, RUNNER_ACTOR, run_dir, after_line, chance)
        scenario.inject("SIGKILL of an evaluation runner")
    assert command.wait() == 0, command.output
    assert_whole(run_dir, 40, 500)
    assert all(line["evaluation/env_runners/num_episodes"] == 6 for line in progress_of(run_dir))
    scenario.ends("replaced, each evaluation has exactly its number of episodes")


@pytest.mark.chaos
@pytest.mark.parametrize("num_learners", [1, 2])
def test_killed_learners(
    num_learners: int, start: Start, tmp_path: Path, chance: random.Random, scenario: Scenario
) -> None:
    """With several learners the state comes from a peer, with one from the last checkpoint."""
    run_dir = tmp_path / "run"
    overrides = [*TRAIN, f"learners.num_learners={num_learners}", "evaluation.evaluation_interval=null"]
    sizes = [f"algorithm.train_batch_size_per_learner={BATCH // num_learners}", "algorithm.minibatch_size=250"]
    command = start(*RUNNER, *overrides, *sizes, "stop.training_iteration=16", f"hydra.run.dir={run_dir}")
    for after_line in (3, 8):
        kill_one(command, LEARNER_ACTOR, run_dir, after_line, chance)
        scenario.inject("SIGKILL of a learner")
    assert command.wait() == 0, command.output
    assert_whole(run_dir, 16, BATCH)
    scenario.ends("replaced, each iteration is there once")


# Run -> its overrides, what is killed, env steps in which it promises a return of 450, by which metric, and iterations
# from one kill to the next. The ones of a3c are the shortest: an env runner that is killed while it starts again, more
# than three times in a row, ends a run.
RETURN = "env_runners/episode_return_mean"
ASYNCHRONOUS = {
    "impala": (
        ["+experiment=impala_cartpole", "learners.num_learners=2"],
        *([RUNNER_ACTOR, LEARNER_ACTOR], 1_000_000, RETURN, 2),
    ),
    "appo": (
        ["+experiment=appo_cartpole", "learners.num_learners=1"],
        *([RUNNER_ACTOR, LEARNER_ACTOR], 400_000, RETURN, 2),
    ),
    "a3c": (["+experiment=a3c_cartpole"], [RUNNER_ACTOR], 800_000, RETURN, 6),
    "apex": (
        ["+experiment=apex_cartpole", "learners.num_learners=1"],
        *([RUNNER_ACTOR, SHARD_ACTOR, LEARNER_ACTOR], 250_000, f"evaluation/{RETURN}", 2),
    ),
}
NUM_KILLS = 20


@pytest.mark.chaos
@pytest.mark.parametrize("run", ASYNCHRONOUS)
def test_asynchronous_runs_learn_whatever_is_killed(
    run: str, start: Start, tmp_path: Path, chance: random.Random, scenario: Scenario
) -> None:
    """Twenty times in a row a random actor dies; the run reaches its return, and ends by itself."""
    overrides, killed, num_env_steps, metric, every = ASYNCHRONOUS[run]
    run_dir = tmp_path / "run"
    never = [f"stop.{metric.replace('/', '.')}=10000", f"stop.num_env_steps_sampled_lifetime={num_env_steps}"]
    command = start(*RUNNER, *overrides, "tracking=none", *never, f"hydra.run.dir={run_dir}")
    for number in range(NUM_KILLS):
        kill_one(command, killed[number % len(killed)], run_dir, every * number + 1, chance)
        scenario.inject(f"SIGKILL of {killed[number % len(killed)].removeprefix('ray::')}")
    assert command.wait(3 * WAIT_S) == 0, command.output
    lines = progress_of(run_dir)
    assert max(line.get(metric) or 0 for line in lines) >= 450
    restarts = [name for name in lines[-1] if name.endswith("_restarts")]
    assert sum(lines[-1][name] for name in restarts) == NUM_KILLS
    scenario.ends(f"all replaced, a return of 450 within {num_env_steps:,} env steps")


# Run -> its overrides, what is killed, its plan with samples in the order of their requests.
IN_ORDER = "{mode: async, num_async: 2, deterministic: true}"
IMPALA_IN_ORDER = f"[{{ParallelRollouts: {IN_ORDER}}}, ConcatBatches, TrainOneStep]"
DETERMINISTIC = {
    "impala_cartpole": (
        ["+experiment=impala_cartpole", "learners.num_learners=2"],
        [RUNNER_ACTOR, LEARNER_ACTOR],
        IMPALA_IN_ORDER,
    ),
    "impala_cartpole with prefetch": (
        ["+experiment=impala_cartpole", "learners.num_learners=2", "learners.prefetch=true"],
        [RUNNER_ACTOR, LEARNER_ACTOR],
        IMPALA_IN_ORDER,
    ),
    "appo_cartpole": (
        ["+experiment=appo_cartpole", "learners.num_learners=1"],
        [RUNNER_ACTOR, LEARNER_ACTOR],
        f"[{{ParallelRollouts: {IN_ORDER}}}, ConcatBatches, {{MixInReplay: {{replay_proportion: 0.5}}}}, TrainOneStep, "
        "UpdateTargetNetwork]",
    ),
    "a3c_cartpole": (
        ["+experiment=a3c_cartpole"],
        [RUNNER_ACTOR],
        "[{AsyncGradients: {num_async: 2, deterministic: true}}, {ApplyGradients: {update_all: false}}]",
    ),
    "apex_cartpole": (
        ["+experiment=apex_cartpole", "learners.num_learners=1"],
        [RUNNER_ACTOR, LEARNER_ACTOR, SHARD_ACTOR],
        "[{Concurrently: {output_indexes: [1], round_robin_weights: auto, plans: [[{ParallelRollouts: "
        f"{IN_ORDER}}}, StoreToReplayBuffer], "
        "[{Replay: {learning_starts: 1000}}, TrainOneStep, UpdatePriorities, "
        "UpdateTargetNetwork]]}}]",
    ),
}
OF_LOSSES = (
    "fault_tolerance/num_remote_worker_restarts",
    "fault_tolerance/num_learner_restarts",
    "replay_buffers/replay/num_shard_restarts",
)


@pytest.mark.chaos
@pytest.mark.parametrize("run", DETERMINISTIC)
def test_deterministic_runs_have_the_same_numbers_whatever_is_killed(
    run: str, start: Start, tmp_path: Path, chance: random.Random, scenario: Scenario
) -> None:
    """Twenty times in a row an actor dies; each iteration has the numbers of a run that was left alone."""
    chosen, killed, plan = DETERMINISTIC[run]
    num_iterations = 2 * NUM_KILLS + 5
    overrides = [*chosen, "tracking=none", f"algorithm.plan={plan}", "evaluation.evaluation_interval=null"]
    stop = compose_experiment(chosen).values["stop"]
    overrides += [f"~stop.{metric}" for metric in stop] + [f"stop.training_iteration={num_iterations}"]
    alone, disturbed = tmp_path / "alone", tmp_path / "disturbed"
    command = start(*RUNNER, *overrides, f"hydra.run.dir={alone}")
    assert command.wait() == 0, command.output
    command = start(*RUNNER, *overrides, f"hydra.run.dir={disturbed}")
    for number in range(NUM_KILLS):
        kill_one(command, killed[number % len(killed)], disturbed, 2 * number + 1, chance)
        scenario.inject(f"SIGKILL of {killed[number % len(killed)].removeprefix('ray::')}")
    assert command.wait() == 0, command.output
    lines = progress_of(disturbed)
    assert sum(lines[-1].get(name, 0) for name in OF_LOSSES) == NUM_KILLS

    def numbers_of(run_dir: Path) -> list[dict[str, Any]]:
        return [{name: value for name, value in line.items() if name not in OF_LOSSES} for line in lines_of(run_dir)]

    assert numbers_of(disturbed) == numbers_of(alone)
    scenario.ends(f"all replaced, {num_iterations} iterations equal bit for bit")


@pytest.fixture
def ray_nodes() -> Iterator[Any]:
    """Yield a cluster of this machine with a head for the driver only; nodes are added and killed by the test."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


@pytest.mark.chaos
def test_killed_ray_nodes(
    ray_nodes: Any, start: Start, tmp_path: Path, chance: random.Random, scenario: Scenario
) -> None:
    """Each node has room for one of two env runners; a node that is lost is followed by a new one."""
    nodes = [ray_nodes.add_node(num_cpus=1) for _ in range(2)]
    run_dir = tmp_path / "run"
    overrides = [*TRAIN, "env_runners.num_env_runners=2", "evaluation.evaluation_interval=null"]
    sizes = [f"algorithm.train_batch_size_per_learner={BATCH}", "algorithm.minibatch_size=500"]
    command = start(
        *(*RUNNER, *overrides, *sizes, "stop.training_iteration=12", f"hydra.run.dir={run_dir}"),
        environment={"RAY_ADDRESS": ray_nodes.address},
    )
    for after_line in (2, 6):
        assert command.reaches(lambda line=after_line: num_lines(run_dir) >= line, WAIT_S), command.output
        time.sleep(chance.uniform(0, 0.3))
        ray_nodes.remove_node(nodes.pop(chance.randrange(2)), allow_graceful=False)
        scenario.inject("SIGKILL of a Ray node")
        nodes.append(ray_nodes.add_node(num_cpus=1))
    assert command.wait() == 0, command.output
    last = assert_whole(run_dir, 12, BATCH)
    assert last["fault_tolerance/num_remote_worker_restarts"] == 2
    scenario.ends("its env runner started again on the new node, each iteration has all its env steps")


@pytest.mark.chaos
def test_the_killed_head_of_a_cluster(
    ray_nodes: Any, start: Start, tmp_path: Path, chance: random.Random, scenario: Scenario
) -> None:
    """Ray ends the process that cannot reach it; the run goes on from its last checkpoint on another cluster."""
    ray_nodes.add_node(num_cpus=2)
    run_dir = tmp_path / "run"
    overrides = [*TRAIN, "env_runners.num_env_runners=2", "evaluation.evaluation_interval=null"]
    sizes = [f"algorithm.train_batch_size_per_learner={BATCH}", "algorithm.minibatch_size=500"]
    command = start(
        *(*RUNNER, *overrides, *sizes, "stop.training_iteration=100000", f"hydra.run.dir={run_dir}"),
        environment={"RAY_ADDRESS": ray_nodes.address},
    )
    assert command.reaches(lambda: num_lines(run_dir) >= 4, WAIT_S), command.output
    time.sleep(chance.uniform(0, 0.3))
    begun = time.monotonic()
    ray_nodes.remove_node(ray_nodes.head_node, allow_graceful=False)
    scenario.inject("SIGKILL of the head of the Ray cluster")
    assert command.wait() == 1, command.output
    stood_still_s = time.monotonic() - begun
    assert newest_state(run_dir), "the last checkpoint is whole"
    num_iterations = num_lines(run_dir) + 2
    resumed = start(*RUNNER, "resume", str(run_dir), f"stop.training_iteration={num_iterations}")  # on a Ray of its own
    assert resumed.wait() == 0, resumed.output
    assert_whole(run_dir, num_iterations, BATCH)
    scenario.ends(f"the run ends after {stood_still_s:.0f} s, `resume` continues from its last checkpoint")
