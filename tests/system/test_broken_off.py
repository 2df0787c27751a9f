"""Iterations that are broken off because a run has to end soon: the part that is done is in the checkpoint."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner import interrupts
from runner.checkpoints import read_manifest
from runner.experiment import trainer as trainer_module
from tests.conftest import QUICK, WAIT_S, Outcome, checkpoints_of, marked_but, progress_of, result_of, without_times

Run = Callable[..., Outcome]
_SHORT = ("tracking=none", "evaluation.evaluation_interval=null", "stop.env_runners.episode_return_mean=1000")
STARTS = {
    "ppo": ("+experiment=ppo_cartpole", *QUICK),
    "dqn": (
        "+experiment=dqn_cartpole",
        *_SHORT,
        "module.fcnet_hiddens=[8]",
        "algorithm.min_sample_timesteps_per_iteration=500",
    ),
    "in_turn": ("+experiment=dqn_cartpole", *_SHORT, "module.fcnet_hiddens=[8]", "algorithm.training_intensity=null"),
    "a2c": ("+experiment=a2c_cartpole", *_SHORT),
    "appo": ("+experiment=appo_cartpole", *_SHORT, "engine=inline"),
    "ahead": (
        "+experiment=appo_cartpole",
        *_SHORT,
        "env_runners.num_env_runners=0",
        "learners.num_learners=1",
        "learners.prefetch=true",
    ),
}


def _end_at(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a SIGTERM be overdue when an operator asks for the `call`-th time."""
    calls: list[int] = []

    def is_overdue() -> bool:
        calls.append(len(calls) + 1)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGTERM)
        return len(calls) >= call

    monkeypatch.setattr(trainer_module, "is_overdue", is_overdue)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        *marked_but(
            pytest.mark.slow,
            [
                *(("ppo", call) for call in (1, 2, 3)),
                *(("dqn", call) for call in (1, 601, 602)),
                *(("in_turn", call) for call in (600, 601, 602)),
                *(("a2c", call) for call in (2, 30)),
                *(("appo", call) for call in (20, 21, 22)),
            ],
            *(("ppo", 3), ("dqn", 601)),
        ),
        *(pytest.param("ahead", call, marks=[pytest.mark.slow, pytest.mark.ray]) for call in (20, 21, 22)),
    ],
)
def test_the_rest_of_an_iteration_is_for_the_resumed_run(
    name: str, call: int, run_main: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = (*STARTS[name], "checkpoint.every_iterations=1", "checkpoint.keep_best=0")
    straight = run_main(*start, "hydra.run.dir=straight", "stop.training_iteration=4")
    assert straight.code == 0, straight.err
    with monkeypatch.context() as patch:
        _end_at(call, patch)
        outcome = run_main(*start, "hydra.run.dir=run", "stop.training_iteration=4")
    assert (outcome.code, outcome.err) == (130, "")
    run_dir = tmp_path / "run"
    done = len(progress_of(run_dir)) if (run_dir / "progress.jsonl").exists() else 0
    assert result_of(run_dir)["stop_reason"] == f"SIGTERM within iteration {done + 1}"
    assert checkpoints_of(run_dir)[-1] == f"iteration_{done:06d}"
    resumed = run_main("resume", "run")
    assert resumed.code == 0, resumed.err
    expected, lines = progress_of(tmp_path / "straight"), progress_of(run_dir)
    assert [without_times(line) for line in lines] == [without_times(line) for line in expected]
    assert _digests(run_dir) == _digests(tmp_path / "straight")


def _digests(run_dir: Path) -> dict[str, str]:
    """Digests of the files of iteration 4 that have no seconds in them."""
    files = read_manifest(run_dir / "checkpoints" / "iteration_000004")["files"]
    return {name: digest for name, digest in files.items() if name.split(".")[0] not in ("metrics", "plan")}


def test_a_short_iteration_ends(run_main: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes in the middle of an iteration, which has five seconds."""
    monkeypatch.setattr(trainer_module, "is_overdue", _after_a_signal(interrupts.is_overdue))
    outcome = run_main(*STARTS["ppo"], "hydra.run.dir=run", "stop.training_iteration=4")
    assert outcome.code == 130
    assert result_of(tmp_path / "run")["stop_reason"] == "SIGTERM after iteration 1"


def _after_a_signal(is_overdue: Callable[[], bool]) -> Callable[[], bool]:
    sent: list[bool] = []

    def asked() -> bool:
        if not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGTERM)
        return is_overdue()

    return asked


@pytest.mark.slow
def test_a_long_iteration_of_a_real_process(start_main: Callable[..., Any], tmp_path: Path) -> None:
    """An iteration of a hundred million env steps: after SIGTERM the process ends within seconds, with a checkpoint."""
    start = ("algorithm.min_sample_timesteps_per_iteration=100000000", "hydra.run.dir=run")
    bucket = tmp_path / "bucket"
    process = start_main(*STARTS["a2c"], *start, f"checkpoint.upload_to=file://{bucket}")
    deadline = time.monotonic() + WAIT_S
    while (
        "stop when" not in (tmp_path / "run/runner.log").read_text() if (tmp_path / "run/runner.log").exists() else True
    ):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    time.sleep(2.0)
    asked_s = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (130, "")
    assert time.monotonic() - asked_s < 60.0
    assert checkpoints_of(tmp_path / "run") == ["iteration_000000"]
    assert (bucket / "run/checkpoints/iteration_000000/manifest.json").exists()
