"""`Trainer.fit`: a run of a trainer that is there already, with the records of one from the command line."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.checkpoints.folder import list_checkpoints
from runner.config.composed import Composed
from runner.config.errors import Problem, UserError
from runner.experiment.run import Run
from runner.experiment.run_folder import claim_run_dir, opened_run_folder
from runner.experiment.run_records import RunRecords
from runner.interrupts import interrupts
from runner.pages.run_record import RunRecord, read_run

if TYPE_CHECKING:
    from runner.experiment.trainer import Trainer


@dataclass(frozen=True)
class Origin:
    """What a trainer was made of, which its run records.

    Attributes:
        composed: values and sources of the configuration.
        checkpoint: that it goes on from; None: it begins.
        is_trusted: follow the files beside the checkpoint, whoever wrote them.
    """

    composed: Composed
    checkpoint: Path | None = None
    is_trusted: bool = False


def fit(trainer: Trainer, origin: Origin | None, run_dir: Path | None = None) -> tuple[RunRecord, Origin]:
    """Train until a stop criterion holds or somebody interrupts.

    Args:
        trainer: ready to train.
        origin: of the trainer; None: nobody knows.
        run_dir: folder of the run; None: of the checkpoint that it goes on from, else `hydra.run.dir`.

    Returns:
        What the run left, and the origin with its newest checkpoint, from which another call goes on.
    """
    if origin is None:
        what = "fit records the configuration as it was composed, and this trainer was made of a dataclass"
        allowed = "Trainer.from_experiment(...) or Trainer.from_checkpoint(...); or train(), an iteration at a time"
        raise UserError(Problem(what, "Trainer.fit", allowed=allowed).render_alone())
    config, start_time_s = trainer.config, time.time()
    with (
        opened_run_folder(run_dir or _run_dir_of(origin)) as folder,
        interrupts(),
        RunRecords(
            config, origin.composed, folder, trainer.last_result, origin.checkpoint, start_time_s, origin.is_trusted
        ) as records,
        trainer.noting(records.note),
    ):
        Run(config, trainer, records).train_until_stopped()
    checkpoints = list_checkpoints(folder.path / "checkpoints")
    newest = checkpoints[-1] if checkpoints else origin.checkpoint
    return read_run(folder.path), replace(origin, checkpoint=newest)


def _run_dir_of(origin: Origin) -> Path:
    checkpoint = origin.checkpoint
    if checkpoint is not None and checkpoint.parent.name == "checkpoints":
        return checkpoint.parent.parent
    named = None if checkpoint is not None else claim_run_dir(origin.composed)
    if named is None:
        got = f"a checkpoint outside of a run dir, {checkpoint}" if checkpoint else "hydra.run.dir without a value"
        problem = Problem("fit does not know where to write", "Trainer.fit", got, "fit(run_dir=...)")
        raise UserError(problem.render_alone())
    return named
