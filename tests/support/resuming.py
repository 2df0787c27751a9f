"""Runs with equal numbers: one that continues from a checkpoint, and one whose env runners are Ray actors."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.checkpoints import load_checkpoint, read_manifest, save_checkpoint
from runner.experiment.trainer import Trainer
from tests.conftest import Outcome, Run, checkpoints_of, lines_of, num_lines, result_of, without_times

Results = list[dict[str, Any]]


def train(trainer: Trainer, num_iterations: int) -> Results:
    """Return the results of so many iterations without what is measured in seconds."""
    return [without_times(trainer.train()) for _ in range(num_iterations)]


def assert_resumes_exactly(
    make: Callable[[], Trainer], folder: Path, *, cuts: Sequence[int] = (2,), num_after: int = 2
) -> Results:
    """Train a run without a stop, save another after each of `cuts` iterations, and continue from each checkpoint.

    Results and parameters are compared bit for bit.

    Args:
        make: makes the trainer, for each run a new one.
        folder: where checkpoints are saved, as `iteration_<cut>`.
        cuts: iterations after which a checkpoint is saved. Where operators keep something only now and then: several.
        num_after: iterations after the last checkpoint.

    Returns:
        The results of the run without a stop, one for each iteration.
    """
    num_iterations = max(cuts) + num_after
    with make() as trainer:
        expected = train(trainer, num_iterations)
        weights, seq_no = trainer.learners.get_weights(), trainer.env_runners.weights_seq_no
    with make() as trainer:
        for iteration in range(1, max(cuts) + 2):
            assert train(trainer, 1) == expected[iteration - 1 : iteration], "a checkpoint must not change the run"
            if iteration in cuts:
                save_checkpoint(folder / f"iteration_{iteration}", trainer.get_state(), {})
    for cut in cuts:
        with make() as trainer:
            trainer.set_state(load_checkpoint(folder / f"iteration_{cut}")[0])
            assert train(trainer, num_iterations - cut) == expected[cut:]
            assert_same_weights(trainer.learners.get_weights(), weights)
            assert trainer.env_runners.weights_seq_no == seq_no
    return expected


def assert_same_runs(makes: Iterable[Callable[[], Trainer]], num_iterations: int) -> Results:
    """Train several runs; results and parameters must be equal bit for bit. Return the results of one."""
    runs = []
    for make in makes:
        with make() as trainer:
            runs.append((train(trainer, num_iterations), trainer.learners.get_weights()))
    (expected, weights), *others = runs
    assert others, "at least two runs"
    for results, other_weights in others:
        assert results == expected
        assert_same_weights(other_weights, weights)
    return expected


def assert_same_on_ray(make: Callable[[str], Trainer], num_iterations: int) -> Results:
    """Train a run in one process and one on Ray actors, which must be equal; `make` gets the override of the engine."""
    return assert_same_runs((partial(make, f"engine={engine}") for engine in ("inline", "ray")), num_iterations)


def assert_same_weights(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Compare the parameters of all modules, bit for bit."""
    assert list(one) == list(other)
    for module_id, weights in one.items():
        np.testing.assert_array_equal(weights, other[module_id])


def assert_command_resumes_exactly(
    run_main: Run, folder: Path, *arguments: str, iterations: tuple[int, int], resume: Sequence[str] = ()
) -> Outcome:
    """Compare a run without a stop, in the folder `straight`, with the run `run`, which stops and is resumed.

    Args:
        run_main: the fixture; the current folder is `folder`.
        folder: the folder of both runs.
        arguments: arguments of both runs.
        iterations: the iteration at which `run` stops, and the last one of both.
        resume: overrides of the resume.

    Returns:
        Outcome of the resume.
    """
    stop, end = (f"stop.training_iteration={number}" for number in iterations)
    for command in ((*arguments, end, "hydra.run.dir=straight"), (*arguments, stop, "hydra.run.dir=run")):
        outcome = run_main(*command)
        assert outcome.code == 0, outcome.err
    resumed = run_main("resume", "run", end, *resume)
    assert resumed.code == 0, resumed.err
    assert lines_of(folder / "run") == lines_of(folder / "straight")
    return resumed


def overdue_at(call: int, otherwise: Callable[..., bool]) -> Callable[..., bool]:
    """Return an `is_overdue` that sends SIGTERM, and is true from then on, when it is called for the `call`-th time."""
    calls: list[int] = []

    def is_overdue(*patience_s: float) -> bool:
        calls.append(len(calls) + 1)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGTERM)
        return len(calls) >= call or otherwise(*patience_s)

    return is_overdue


def assert_resumes_after_a_signal(run_main: Run, folder: Path, *start: str, module: Any, call: int, place: str) -> None:
    """End a run of four iterations by a SIGTERM, resume it, and compare it with one without a stop, bit for bit.

    Args:
        run_main: the fixture; the current folder is `folder`.
        folder: the folder of both runs.
        start: arguments of both runs.
        module: the module whose `is_overdue` is called.
        call: the call at which the signal comes.
        place: expected place in the reason of the stop, in the iteration after the completed ones.
    """
    straight = run_main(*start, "hydra.run.dir=straight", "stop.training_iteration=4")
    assert straight.code == 0, straight.err
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "is_overdue", overdue_at(call, module.is_overdue))
        outcome = run_main(*start, "hydra.run.dir=run", "stop.training_iteration=4")
    assert (outcome.code, outcome.err) == (130, "")
    run_dir = folder / "run"
    done = num_lines(run_dir)
    assert result_of(run_dir)["stop_reason"] == f"SIGTERM {place} iteration {done + 1}"
    assert checkpoints_of(run_dir)[-1] == f"iteration_{done:06d}"
    resumed = run_main("resume", "run")
    assert resumed.code == 0, resumed.err
    assert lines_of(run_dir) == lines_of(folder / "straight")
    assert _digests(run_dir) == _digests(folder / "straight")


def _digests(run_dir: Path) -> dict[str, str]:
    """Digests of the files of iteration 4 that have no seconds in them."""
    files = read_manifest(run_dir / "checkpoints" / "iteration_000004")["files"]
    return {name: digest for name, digest in files.items() if name.split(".")[0] not in ("metrics", "plan")}
