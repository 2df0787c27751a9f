"""Replay buffers whose memory is told at the start, and refused before anything starts where it is too much."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from runner import Trainer
from runner.config.errors import ConfigError, Problem
from runner.config.plans.buffers import modules_stored_in
from runner.experiment import replay_memory
from runner.experiment.rehearsal import rehearse
from runner.experiment.replay_memory import BufferMemory, check_fits, check_replay_memory
from tests.conftest import MakeRun, Run
from tests.support.configs import config_from
from tests.support.problems import Including, shown_problems

REPLAY = ("+experiment=a2c_replay_cartpole", "evaluation=none", "tracking=none", "stop.training_iteration=1")
KEY = "algorithm.replay_buffers.replay.capacity"
SHORT = "algorithm.min_sample_timesteps_per_iteration=80"
# Far above what any machine has.
ENDLESS = f"{KEY}=100000000000000"
TWO = [
    "+algorithm.replay_buffers.more={_target_: runner.replay.ReplayBuffer, capacity: 4096}",
    "algorithm.plan=[{Concurrently: {output_indexes: [1], plans: "
    "[[ParallelRollouts,StoreToReplayBuffer,{StoreToReplayBuffer: {buffer: more}}],"
    "[Replay,TrainOneStep],[{Replay: {buffer: more}},TrainOneStep]]}}]",
]


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 10,000 bytes, 8,000 of them for replay."""
    monkeypatch.setattr(replay_memory, "available_memory", lambda: 10_000)


def test_what_is_told_is_what_is_taken(run_main: Run) -> None:
    told = run_main(*REPLAY, SHORT, f"{KEY}=1000", "hydra.run.dir=run")
    assert told.code == 0
    line = re.search(r"^  replay +(.*)$", told.out, flags=re.MULTILINE)
    # float32[4] and reward, int64 action, float32 logits[2], their log-probability, value, 5 bytes of the ring
    assert line is not None
    assert line[1] == "1,000 env steps, 45 bytes each, 45.0 kB"
    result = json.loads(Path("run/result.json").read_text())
    assert result["replay_buffers/replay/num_bytes"] == 45_000


def test_too_large_is_refused_before_anything_starts(run_main: Run) -> None:
    refused = run_main(*REPLAY, "tracking=mlflow", ENDLESS, "env_runners.num_env_runners=1")
    assert (refused.code, refused.out) == (2, "")
    (problem,) = shown_problems(refused.err)
    free = re.sub(r"[\d.]+ GB of free", "1 GB of free", problem.what)
    assert replace(problem, what=free) == Problem(
        "the replay buffer needs 4,500,000.0 GB: this machine has 1 GB of free memory, of which replay may use 80%",
        where="algorithm.replay_buffers.replay.capacity",
        got="100,000,000,000,000 env steps, 45 bytes each, 4,500,000.0 GB",
        expected=Including("up to "),
    )
    assert list(Path.cwd().iterdir()) == []
    expected = re.search(r"expected      up to ([\d,]+)\n", refused.err)
    assert expected is not None
    # Free memory varies a little meanwhile.
    half = int(expected[1].replace(",", "")) // 2
    check_replay_memory(config_from(*REPLAY, f"{KEY}={half}"))


def test_the_largest_that_fits_is_named(small_machine: None) -> None:
    with pytest.raises(ConfigError, match=r"expected      up to 177$"):
        check_replay_memory(config_from(*REPLAY, f"{KEY}=178"))
    check_replay_memory(config_from(*REPLAY, f"{KEY}=177"))


def test_a_resumed_run_is_refused_a_larger_buffer(run_main: Run, copy_of_run: MakeRun) -> None:
    run_dir = copy_of_run(*REPLAY, SHORT)
    before = (run_dir / "result.json").read_text()
    for more in ([], ["--module-only", "hydra.run.dir=new"]):
        refused = run_main("resume", str(run_dir), ENDLESS, "stop.training_iteration=2", *more)
        assert refused.code == 2
        assert "the replay buffer needs" in refused.err
    assert (run_dir / "result.json").read_text() == before
    assert not Path("new").exists()


def test_a_trainer_refuses_it_and_one_that_evaluates_does_not(
    small_machine: None, run_main: Run, finished_run: MakeRun
) -> None:
    with pytest.raises(ConfigError, match=r"the replay buffer needs 45.0 kB"):
        Trainer.from_experiment("a2c_replay_cartpole", [f"{KEY}=1000", "env_runners.num_env_runners=1"])
    run_dir = finished_run(*REPLAY, SHORT)
    assert run_main("evaluate", str(run_dir), f"{KEY}=1000", "evaluation.evaluation_duration=1").code == 0


def test_a_rehearsal_tells_and_refuses(small_machine: None) -> None:
    made = rehearse(config_from(*REPLAY)).made
    assert "replay buffer replay (80 env steps, 45 bytes each, 3.6 kB)" in made
    with pytest.raises(ConfigError, match=r"the replay buffer needs 45.0 kB"):
        rehearse(config_from(*REPLAY, f"{KEY}=1000"))


def test_buffers_and_modules_add_up(small_machine: None) -> None:
    config = config_from(*REPLAY, *TWO)
    buffers = config.algorithm.replay_buffers
    more = {**buffers["more"], "_target_": "runner.replay.PrioritizedReplayBuffer"}  # without errors of A2C's loss
    algorithm = replace(config.algorithm, replay_buffers={**buffers, "more": more})
    with pytest.raises(ConfigError) as caught:
        check_replay_memory(replace(config, algorithm=algorithm))
    told = {problem.where: (problem.got, problem.expected) for problem in caught.value.problems}
    all_bytes = 80 * 45 + 4096 * 54.5  # priorities take 9.5 bytes
    assert told == {
        KEY: (
            "80 env steps, 45 bytes each, 3.6 kB",
            f"up to {int(80 * 8000 / all_bytes)} if all shrink by the same factor",
        ),
        "algorithm.replay_buffers.more.capacity": (
            "4,096 env steps, 54 bytes each, 223.2 kB",
            f"up to {int(4096 * 8000 / all_bytes)} if all shrink by the same factor",
        ),
    }


MULTI = [
    "+experiment=ppo_multi_agent_cartpole",
    "tracking=none",
    "algorithm.replay_buffers={replay: {_target_: runner.replay.ReplayBuffer, capacity: 1000}}",
]


@pytest.mark.parametrize("selected", [["p0", "p1"], ["p0"]])
def test_modules_that_are_stored_count(selected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    modules = [f"{{SelectExperiences: {{modules: [{','.join(selected)}]}}}},"] if len(selected) == 1 else [""]
    plan = f"algorithm.plan=[ParallelRollouts,{modules[0]}MixInReplay,TrainOneStep]"
    config = config_from(*MULTI, plan)
    assert modules_stored_in("replay", config, ["p0", "p1"]) == selected
    monkeypatch.setattr(replay_memory, "available_memory", lambda: 1)
    with pytest.raises(ConfigError) as caught:
        check_replay_memory(config)
    (problem,) = caught.value.problems
    assert problem.got is not None
    assert (" in 2 modules" in problem.got) == (len(selected) == 2)


def test_a_share_of_the_memory_is_kept_for_the_rest() -> None:
    buffer = BufferMemory("replay", 800, 10.0, 1)
    check_fits([buffer], 10_000)
    with pytest.raises(
        ConfigError, match=r"8.0 kB: this machine has 10.0 kB of free memory, of which replay may use 80%"
    ):
        check_fits([buffer], 9_999)
