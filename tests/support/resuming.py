"""The contract of a resume: a run that continues from a checkpoint has the numbers of one that was not stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runner.checkpoints import load_checkpoint, save_checkpoint
from runner.experiment.trainer import Trainer
from tests.conftest import without_times

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


def assert_same_weights(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Compare the parameters of all modules, bit for bit."""
    assert list(one) == list(other)
    for module_id, weights in one.items():
        np.testing.assert_array_equal(weights, other[module_id])
