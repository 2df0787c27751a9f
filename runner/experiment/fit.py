"""`runner.fit`: train an existing trainer to the end, and record the run as the command line does."""

from __future__ import annotations

import time
from pathlib import Path

from runner.checkpoints.folder import list_checkpoints
from runner.config.errors import Problem, UserError
from runner.experiment.run import Run
from runner.experiment.run_folder import claim_run_dir, opened_run_folder
from runner.experiment.run_records import RunRecords
from runner.experiment.trainer import Trainer, TrainerProvenance
from runner.interrupts import interrupts
from runner.pages.run_record import RunRecord, read_run


def fit(trainer: Trainer, run_dir: str | Path | None = None) -> RunRecord:
    """Train until a criterion of `stop` is met, and record the run as the command line does.

    The run dir contains progress.jsonl, checkpoints, result.json and the configuration. MLflow receives the metrics,
    and `tracking.display` selects the display. Ctrl-C, or interrupting a notebook kernel, ends training after the
    current iteration and saves a checkpoint. Another call resumes in the same run dir. Afterwards you can still
    evaluate the trainer.

    Args:
        trainer: trainer that is ready to train.
        run_dir: folder of the run, or None for `hydra.run.dir` (the folder of the run that a checkpoint belongs to).

    Returns:
        The record of the run.

    Raises:
        UserError: the run dir contains another run, or the trainer was made from a dataclass.
        RunFailure: the run failed; files and tracking are closed, and the last checkpoint is complete.
    """
    provenance = trainer.provenance
    if provenance is None:
        what = "fit needs a composed configuration to record, but this trainer was made from a dataclass"
        fix = "use Trainer.from_experiment(...) or Trainer.from_checkpoint(...), or call train() once per iteration"
        raise UserError(Problem(what, "runner.fit", fix=fix))
    folder_of_run = _run_dir_of(provenance) if run_dir is None else Path(run_dir)
    with (
        opened_run_folder(folder_of_run) as folder,
        interrupts(),
        RunRecords(trainer.config, provenance, folder, trainer.last_result, time.time()) as records,
        trainer.notes.shown_by(records.note),
    ):
        Run(trainer, records).train_until_stopped()
    checkpoints = list_checkpoints(folder.path / "checkpoints")
    if checkpoints:
        trainer.note_checkpoint(checkpoints[-1])
    return read_run(folder.path)


def _run_dir_of(provenance: TrainerProvenance) -> Path:
    checkpoint = provenance.checkpoint
    if checkpoint is not None and checkpoint.parent.name == "checkpoints":
        return checkpoint.parent.parent
    if checkpoint is not None:
        got = f"a checkpoint outside of a run dir, {checkpoint}"
        raise UserError(Problem("fit cannot determine the run dir", "runner.fit", got, fix="fit(trainer, run_dir=...)"))
    return claim_run_dir(provenance.composed)
