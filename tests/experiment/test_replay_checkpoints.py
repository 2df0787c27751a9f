"""Replay buffers in the checkpoints of runs: resumed, left out, damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.runs import assert_equal_ends, newest_state
from tests.conftest import MakeRun, Run, progress_of

TRAIN = (
    "+experiment=dqn_cartpole",
    "tracking=none",
    "evaluation=none",
    "algorithm.min_sample_timesteps_per_iteration=300",
    "algorithm.num_steps_sampled_before_learning_starts=400",
    "algorithm.replay_capacity=2500",
    "algorithm.train_batch_size_per_learner=16",
    "algorithm.training_intensity=1",
    "env_runners.num_envs_per_env_runner=4",
    "stop.env_runners.episode_return_mean=1000",
    "checkpoint.every_iterations=4",
    "checkpoint.keep_last=3",
)
HELD = "replay_buffers/replay/num_env_steps"
UPDATES = "num_env_steps_trained_lifetime"


LONG = (*TRAIN, "stop.training_iteration=12")  # its ring is full, and has been written over


def segments_of(run_dir: Path, iteration: int) -> list[Path]:
    return sorted((run_dir / "checkpoints" / f"iteration_{iteration:06d}").glob("*.segment"))


@pytest.mark.parametrize("to", ["", "moved"])
def test_a_resumed_run_ends_like_a_straight_one(
    run_main: Run, finished_run: MakeRun, copy_of_run: MakeRun, tmp_path: Path, to: str
) -> None:
    """An iteration changes one or two of three segments of rows, and some priorities of the fourth segment."""
    straight, run_dir = finished_run(*LONG), copy_of_run(*TRAIN, "stop.training_iteration=8")
    run_dir = run_dir.rename(tmp_path / to) if to else run_dir
    before = segments_of(run_dir, 8)
    outcome = run_main("resume", str(run_dir), "stop.training_iteration=9")
    assert outcome.code == 0, outcome.err
    inodes = {path.stat().st_ino for path in before}
    is_linked = [path.stat().st_ino in inodes for path in segments_of(run_dir, 9)]
    assert is_linked[1], "neither the newest rows nor the oldest ones"
    assert not all(is_linked[:3])
    assert run_main("resume", str(run_dir), "stop.training_iteration=12").code == 0
    assert_equal_ends(straight, run_dir)


def test_replay_that_is_left_out(run_main: Run, tmp_path: Path) -> None:
    outcome = run_main(*TRAIN, "checkpoint.save_replay_buffers=none", "stop.training_iteration=4", "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    assert segments_of(tmp_path / "run", 4) == []
    assert newest_state(tmp_path / "run")["replay_buffers"]["replay"]["modules"] == {}
    outcome = run_main("resume", "run", "stop.training_iteration=6")
    assert outcome.code == 0, outcome.err
    told = [line for line in (outcome.out + outcome.err).splitlines() if "checkpoint.save_replay_buffers=none" in line]
    assert len(told) == 1
    assert "learning waits until enough are stored in replay again" in told[0]
    fourth, fifth, sixth = progress_of(tmp_path / "run")[3:]
    assert fourth[HELD] > 900
    assert fifth[HELD] < 600
    assert fifth[UPDATES] - fourth[UPDATES] < sixth[UPDATES] - fifth[UPDATES], "learning waits for 400 env steps again"


def test_a_damaged_segment_is_named(run_main: Run, copy_of_run: MakeRun) -> None:
    straight = copy_of_run(*LONG)
    path = segments_of(straight, 12)[0]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    outcome = run_main("resume", str(straight), "stop.training_iteration=14")
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    assert str(path) in outcome.err
    assert outcome.err.endswith(f" {straight / 'checkpoints' / 'iteration_000008'}\n")
    assert run_main("evaluate", str(straight)).code == 0, "a policy needs no replay"
    path.write_bytes(content[:-1])
    outcome = run_main("resume", str(straight), "stop.training_iteration=14")
    assert outcome.code == 2
    assert str(path) in outcome.err
