"""Iterations that are broken off because a run has to end soon: the part that is done is in the checkpoint."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runner import interrupts
from runner.experiment import trainer as trainer_module
from tests.conftest import QUICK, WAIT_S, Run, Start, checkpoints_of, marked_but, result_of, wait_until
from tests.support.resuming import assert_resumes_after_a_signal

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
def test_the_rest_of_an_iteration_is_for_the_resumed_run(name: str, call: int, run_main: Run, tmp_path: Path) -> None:
    start = (*STARTS[name], "checkpoint.every_iterations=1", "checkpoint.keep_best=0")
    assert_resumes_after_a_signal(run_main, tmp_path, *start, module=trainer_module, call=call, place="within")


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
def test_a_long_iteration_of_a_real_process(start_main: Start, tmp_path: Path) -> None:
    """An iteration of a hundred million env steps: after SIGTERM the process ends within seconds, with a checkpoint."""
    start = ("algorithm.min_sample_timesteps_per_iteration=100000000", "hydra.run.dir=run")
    bucket = tmp_path / "bucket"
    process = start_main(*STARTS["a2c"], *start, f"checkpoint.upload_to=file://{bucket}")
    log = tmp_path / "run/runner.log"
    wait_until(lambda: log.exists() and "stop when" in log.read_text(), process)
    time.sleep(2.0)
    asked_s = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (130, "")
    assert time.monotonic() - asked_s < 60.0
    assert checkpoints_of(tmp_path / "run") == ["iteration_000000"]
    assert (bucket / "run/checkpoints/iteration_000000/manifest.json").exists()
