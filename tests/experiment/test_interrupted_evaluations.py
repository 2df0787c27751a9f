"""Evaluations that somebody ends, evaluations whose episodes never end, and the limit of their episodes."""

from __future__ import annotations

import logging
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from runner import interrupts
from runner.env_runners import evaluation_watch
from runner.experiment import trainer as trainer_module
from runner.experiment.trainer import Trainer
from tests.conftest import QUICK, WAIT_S, Run, Start, checkpoints_of, progress_of, result_of, wait_until
from tests.support.configs import config_from
from tests.support.resuming import assert_resumes_after_a_signal, overdue_at

PPO = (
    "algorithm.train_batch_size_per_learner=64",
    "algorithm.minibatch_size=32",
    "algorithm.num_epochs=1",
    "env_runners.num_envs_per_env_runner=2",
    "tracking=mlflow",
    "tracking.mlflow=false",
    "tracking.display=plain",
    "hydra.run.dir=run",
    "evaluation.num_envs_per_env_runner=2",
)
EVALUATED = ("evaluation.evaluation_interval=1", "evaluation.evaluation_duration=2")
ENDLESS = (*PPO, "env._target_=tests.support.endless.Endless", "stop.training_iteration=2")
AGENTS = (*PPO, "env._target_=tests.support.endless.EndlessAgents", "stop.training_iteration=2")
REMOTE = "evaluation.evaluation_num_env_runners=2"

RESPONSE_S = 60.0  # five on a machine that has nothing else to do


# -- signals and budgets -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "number"),
    [
        (ENDLESS, signal.SIGTERM),
        (AGENTS, signal.SIGHUP),
        pytest.param((*ENDLESS, REMOTE), signal.SIGINT, marks=pytest.mark.ray),
        pytest.param((*AGENTS, REMOTE), signal.SIGTERM, marks=pytest.mark.ray),
    ],
)
def test_a_signal_ends_an_endless_evaluation_with_a_checkpoint(
    start: tuple[str, ...], number: signal.Signals, start_main: Start, tmp_path: Path
) -> None:
    run = start_main(*start, *EVALUATED)
    log = tmp_path / "run" / "runner.log"
    wait_until(lambda: log.exists() and "set evaluation.max_episode_steps" in log.read_text(), run)
    asked_s = time.monotonic()
    run.send_signal(number)
    out, err = run.communicate(timeout=WAIT_S)
    assert (run.returncode, err) == (130, ""), err
    assert time.monotonic() - asked_s < RESPONSE_S
    assert out.count("evaluation: no") == 1, "one line"
    assert result_of(tmp_path / "run")["stop_reason"] == f"{number.name} in the evaluation of iteration 1"
    assert checkpoints_of(tmp_path / "run") == ["iteration_000000"]


@pytest.mark.slow
def test_a_budget_ends_an_endless_evaluation(run_main: Run, tmp_path: Path) -> None:
    started_s = time.monotonic()
    outcome = run_main(*ENDLESS, *EVALUATED, "--budget", "12s")
    assert outcome.code == 4, outcome.err
    assert time.monotonic() - started_s < 12.0 + RESPONSE_S
    resumed = run_main("resume", "run", "evaluation.max_episode_steps=7")
    assert resumed.code == 0, resumed.err
    lines = progress_of(tmp_path / "run")
    assert [line["training_iteration"] for line in lines] == [1, 2]
    assert [line["evaluation/env_runners/episode_len_mean"] for line in lines] == [7.0, 7.0]


@pytest.mark.parametrize("verb", ["evaluate", "record"])
@pytest.mark.parametrize("start", [ENDLESS, AGENTS])
def test_commands_that_evaluate_end_too(
    verb: str, start: tuple[str, ...], run_main: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_main(*start).code == 0
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as in a new process: warnings are printed
    monkeypatch.setattr(evaluation_watch, "REPORT_AFTER_S", 0.0)
    monkeypatch.setattr(interrupts, "is_overdue", overdue_at(5, lambda *_: False))
    command = (verb, "run", "evaluation.evaluation_duration=2")
    command = (*command, "offline.output=recorded") if verb == "record" else command
    outcome = run_main(*command)
    assert outcome.code == 130
    assert outcome.err.count("if episodes never end, set evaluation.max_episode_steps") == 1
    assert outcome.err.endswith("interrupted by SIGTERM before the command ended; no result was written\n")
    assert not (tmp_path / "run" / "evaluations.jsonl").exists()


# -- exact resume --------------------------------------------------------------------------------------------------

CARTPOLE = (
    "+experiment=ppo_cartpole",
    *(text for text in QUICK if not text.startswith("evaluation.")),
    "checkpoint.every_iterations=1",
    "checkpoint.keep_best=0",
)
PARALLEL = ("evaluation.evaluation_parallel_to_training=true", REMOTE, "evaluation.explore=true")
EVERY = "evaluation.evaluation_interval=1"


@pytest.mark.parametrize(
    ("options", "module", "call"),
    [
        ((EVERY,), interrupts, 1),
        ((EVERY,), interrupts, 40),
        (("evaluation.evaluation_interval=10",), interrupts, 5),  # the one at the end
        pytest.param(
            (EVERY, *PARALLEL, "evaluation.evaluation_duration=300"),
            interrupts,
            2,
            marks=[pytest.mark.slow, pytest.mark.ray],
        ),
        pytest.param((EVERY, *PARALLEL), trainer_module, 3, marks=[pytest.mark.slow, pytest.mark.ray]),
    ],
)
def test_a_resumed_run_repeats_the_evaluation_and_has_the_same_numbers(
    options: tuple[str, ...], module: Any, call: int, run_main: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation_watch, "_LOOK_UP_S", 0.0)
    place = "within" if module is trainer_module else "in the evaluation of"
    assert_resumes_after_a_signal(run_main, tmp_path, *CARTPOLE, *options, module=module, call=call, place=place)


# -- the limit of episodes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        ("env._target_=tests.support.endless.Endless",),
        ("env._target_=tests.support.endless.Endless", "env_runners.gym_env_vectorize_mode=async"),
        ("env._target_=tests.support.endless.EndlessVector",),
        ("env._target_=tests.support.endless.EndlessAgents",),
        ("env._target_=tests.support.endless.Endless", "env.port=0", "env_runners.num_envs_per_env_runner=1"),
        pytest.param(("env._target_=tests.support.endless.Endless", REMOTE), marks=[pytest.mark.slow, pytest.mark.ray]),
    ],
)
def test_episodes_of_evaluations_are_truncated(options: tuple[str, ...]) -> None:
    limit = ("evaluation.max_episode_steps=7", "evaluation.evaluation_duration=5")
    with _trainer(*options, *limit) as trainer:
        result = trainer.evaluate()
    assert result["evaluation/env_runners/num_episodes"] == 5
    assert result["evaluation/env_runners/episode_len_mean"] == 7.0
    assert result["evaluation/env_runners/episode_return_mean"] == 7.0


def test_a_shorter_limit_of_the_environment_stays() -> None:
    with _trainer("env=cartpole", "evaluation.max_episode_steps=100000") as trainer:
        assert trainer.evaluate()["evaluation/env_runners/episode_len_mean"] <= 500


def _trainer(*overrides: str) -> Trainer:
    own = [text for text in PPO if not text.startswith(("hydra", "tracking.display"))]
    return Trainer(config_from(*own, "stop.training_iteration=2", *overrides))
