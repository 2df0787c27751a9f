"""Runs an experiment from the command line: run dir, records, trainer, and training loop."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from runner.checkpoints import load_checkpoint, naming_checkpoint
from runner.checkpoints.folder import naming_older
from runner.config.composed import Composed
from runner.config.errors import RunnerError
from runner.config.references import hiding_values
from runner.config.schemas import ExperimentConfig
from runner.experiment.checkpointing import check_storable
from runner.experiment.run import Run, internal_errors_reported
from runner.experiment.run_folder import RunFolder
from runner.experiment.run_records import RunRecords
from runner.experiment.trainer import Trainer, TrainerProvenance
from runner.interrupts import interrupts

_log = logging.getLogger(__name__)


def run_experiment(
    config: ExperimentConfig,
    composed: Composed,
    folder: RunFolder,
    resume_from: Path | None = None,
    start_time_s: float | None = None,
    is_trusted: bool = False,
) -> int:
    """Train until a stop criterion is met, and return the exit code.

    Args:
        config: configuration of the experiment.
        composed: values and sources of the configuration, recorded with the run.
        folder: run dir for progress.jsonl, result.json and checkpoints.
        resume_from: checkpoint to resume, or None.
        start_time_s: Unix time of the start of the run, or None for now.
        is_trusted: whether to follow the files next to the checkpoint, whoever wrote them.

    Raises:
        ConfigError: the experiment cannot be built; nothing was trained.
        RunFailure: the run failed; files and tracking are closed, and the last checkpoint is kept.
    """
    start_time_s = time.time() if start_time_s is None else start_time_s
    loaded = load_checkpoint(resume_from) if resume_from else None
    provenance = TrainerProvenance(composed, resume_from, is_trusted)
    with _errors_logged(), interrupts(), opened_run(config, provenance, folder, loaded, start_time_s) as run:
        del loaded  # replay buffers may be large
        return run.train_until_stopped()


@contextmanager
def opened_run(
    config: ExperimentConfig,
    provenance: TrainerProvenance,
    folder: RunFolder,
    loaded: tuple[dict[str, Any], dict[str, Any]] | None,
    start_time_s: float,
) -> Iterator[Run]:
    """Make the records and the trainer of a run, and close them after this context.

    Args:
        config: configuration of the experiment.
        provenance: values and sources of the configuration, and the checkpoint to resume, or None.
        folder: run dir.
        loaded: state and manifest of that checkpoint, or None for a new run.
        start_time_s: Unix time of the start of the run.

    Raises:
        ConfigError: the experiment cannot be built, or a checkpoint cannot hold its state.
        CheckpointError: the state is damaged.
        RunFailure: user code failed.
    """
    resume_from, composed = provenance.checkpoint, provenance.composed
    state, manifest = loaded or ({}, {})
    with (
        RunRecords(config, provenance, folder, manifest.get("result", {}), start_time_s) as records,
        ExitStack() as stack,
    ):
        with internal_errors_reported(records.run_dir), hiding_values(composed.values, composed.references):
            trainer = stack.enter_context(
                Trainer(
                    config,
                    loads_modules=resume_from is None,
                    note=records.note,
                    run_dir=records.run_dir,
                    provenance=provenance,
                )
            )
            # Fail now, not at the first checkpoint. `get_state` of external env runners would begin a journal segment.
            if resume_from is None and not config.env.is_external:
                check_storable(trainer.get_state())
        if resume_from is not None:
            with naming_checkpoint(resume_from), naming_older(resume_from):
                trainer.set_state(state)
        del loaded, state  # replay buffers may be large
        yield Run(trainer, records)


@contextmanager
def _errors_logged() -> Iterator[None]:
    """Write the message of an error in this context, and its stack trace, to runner.log."""
    try:
        yield
    except RunnerError as error:
        _log.error("%s\n%s", error, "".join(_frames_of(error)))
        raise


def _frames_of(error: BaseException) -> Iterator[str]:
    """Yield the stack traces of an error's causes and of the error, without their messages, which may hold secrets."""
    if error.__cause__ is not None:
        yield from _frames_of(error.__cause__)
    yield f"{type(error).__name__} (most recent call last):\n"
    yield from traceback.format_tb(error.__traceback__)
