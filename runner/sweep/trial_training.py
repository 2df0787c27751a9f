"""Training of a trial in its process: a run with a separate folder, one iteration at a time."""

from __future__ import annotations

import logging
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from runner.checkpoints import load_checkpoint
from runner.checkpoints.folder import list_checkpoints
from runner.config.errors import RunnerError
from runner.experiment.run_experiment import opened_run
from runner.experiment.run_folder import opened_run_folder
from runner.experiment.trainer import TrainerProvenance
from runner.locks import BEAT_S, STALE_AFTER_S, FolderHeld, FolderLost, owner_of
from runner.sweep.trial_settings import (
    METRICS,
    OBJECTIVE,
    STOP_REASON,
    TIME,
    TrialSettings,
    clone_folder,
    compose_trial,
    remove_clone,
)
from runner.tracking.headline import Status
from runner.tracking.progress_log import write_result

_log = logging.getLogger(__name__)


class TrialTraining:
    """Trains in `TrialSettings.run_dir`, and resumes from a checkpoint in it.

    Args:
        settings: settings of the trial.

    Raises:
        Exception: the trial cannot begin; its `result.json` has the reason.
    """

    def __init__(self, settings: TrialSettings) -> None:
        self._run_dir = Path(settings.run_dir)
        self._known: dict[str, float] = {}
        with ExitStack() as stack:
            try:
                self._begin(settings, stack)
            except (FolderHeld, FolderLost):  # the folder must not be written to
                raise
            except Exception as error:
                _log.exception("the trial could not begin")
                stack.close()
                reason = str(error) if isinstance(error, RunnerError) else f"{type(error).__name__}: {error}"
                self._run_dir.mkdir(parents=True, exist_ok=True)
                write_result(self._run_dir / "result.json", {"status": "failed", "stop_reason": reason})
                raise
            self._stack = stack.pop_all()
        self._is_over = False

    def _begin(self, settings: TrialSettings, stack: ExitStack) -> None:
        composed, self._experiment = compose_trial(settings)
        run_dir = self._run_dir
        sweep = owner_of(run_dir.parent)
        member_of = None if sweep is None else sweep.token
        # A trial of a sweep that was killed on another machine counts as alive until its heartbeat is old.
        folder = stack.enter_context(opened_run_folder(run_dir, member_of, STALE_AFTER_S + BEAT_S))
        cloned = list_checkpoints(clone_folder(run_dir))
        checkpoints = cloned or list_checkpoints(run_dir / "checkpoints")
        resume_from = checkpoints[-1] if checkpoints else None
        _remove_remains(run_dir, resume_from is not None)
        if resume_from is not None:
            folder.write_configuration(composed)  # its population may have changed values
        loaded = load_checkpoint(resume_from) if resume_from else None
        provenance = TrainerProvenance(composed, resume_from)
        self._run = stack.enter_context(opened_run(self._experiment, provenance, folder, loaded, 0.0))
        self._run.begin()
        if cloned:
            self._run.save_checkpoint()  # a checkpoint of this trial, with its values
            remove_clone(run_dir)
        self._newest = self._newest_on_disk()
        self._saved_at = self._time

    @property
    def _time(self) -> float:
        """The time for schedulers."""
        return self._run.records.last_result.get(self._experiment.sweep.time_attr) or 0

    def step(self) -> dict[str, Any]:
        """Return the report of an iteration for `TrialTrainable.step`."""
        run = self._run
        if run.stop_reason is None:  # a resumed run may have met a criterion already
            try:
                with run.failure_recorded():
                    run.record(run.trainer.train())
                    self._save_for_population()
            except Exception:
                self._is_over = True
                raise
        metrics = {name: value for name, value in run.records.last_result.items() if value is not None}
        objectives = self._experiment.objectives
        # Not every iteration has an evaluation.
        self._known |= {name: metrics[name] for name in objectives if name in metrics}
        reason = run.stop_reason
        if reason is not None:
            self._end("finished", reason)
        report = {
            METRICS: {**self._known, **metrics},
            TIME: self._time,
            STOP_REASON: reason or "",
            "done": reason is not None,
        }
        objective = self._known.get(next(iter(objectives)))
        return report if objective is None else {**report, OBJECTIVE: objective}

    def save(self) -> None:
        """Write a checkpoint, unless the trial is over."""
        if not self._is_over:
            self._run.save_checkpoint()
            self._saved_at = self._time
            self._newest = self._newest_on_disk()

    def close(self) -> None:
        """End the trial as interrupted, unless it is over."""
        try:
            if not self._is_over and not self._is_paused:
                self._end("interrupted", "ended by the sweep")
        finally:
            self._is_over = True
            self._stack.close()

    def _end(self, status: Status, reason: str) -> None:
        self._is_over = True
        self._run.end(status, reason)

    def _save_for_population(self) -> None:
        """Write a checkpoint whenever the population may pause the trial or copy its state."""
        interval = self._experiment.perturbation_interval
        if interval is None:
            return
        if self._time - self._saved_at >= interval:
            self.save()
        self._newest = self._newest_on_disk()

    @property
    def _is_paused(self) -> bool:
        """Whether the population has paused the trial, so another process may use this run dir now."""
        if self._experiment.perturbation_interval is None:
            return False
        is_saved = self._saved_at == self._time
        return is_saved or clone_folder(self._run_dir).exists() or self._newest != self._newest_on_disk()

    def _newest_on_disk(self) -> list[Path]:
        return list_checkpoints(self._run_dir / "checkpoints")[-1:]


def _remove_remains(run_dir: Path, continues: bool) -> None:
    """Remove remains of an earlier end; a killed run without a checkpoint is repeated from the start."""
    (run_dir / "result.json").unlink(missing_ok=True)
    if not continues:
        (run_dir / "progress.jsonl").unlink(missing_ok=True)
        shutil.rmtree(run_dir / "checkpoints", ignore_errors=True)
