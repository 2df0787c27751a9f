"""A trial as Ray Tune runs it: a run with a folder of its own, an iteration a step."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from ray import tune

from runner.checkpoints import load_checkpoint
from runner.checkpoints.folder import list_checkpoints
from runner.config.compose import Composed
from runner.config.errors import RunnerError
from runner.run import Run
from runner.run_records import RunRecords
from runner.sweep.resources import bundles_of
from runner.sweep.trial_settings import (
    METRICS,
    OBJECTIVE,
    RUN,
    STOP_REASON,
    TIME,
    TrialSettings,
    clone_folder,
    compose_trial,
    remove_clone,
)
from runner.tracking import write_result
from runner.tracking.log_file import log_to_file
from runner.trainer import Trainer

_log = logging.getLogger(__name__)


class TrialRun(tune.Trainable):
    """Trains in `TrialSettings.run_dir`, and goes on from the checkpoint that is there.

    A trial begins with its first step: before that Tune may have given it to another process, which has the folder.
    """

    @classmethod
    def default_resource_request(cls, config: Mapping[str, Any]) -> tune.PlacementGroupFactory:
        """What its experiment asks for."""
        return tune.PlacementGroupFactory(bundles_of(compose_trial(config[RUN])[1]))

    def setup(self, config: Mapping[str, Any]) -> None:
        """A process for trials, the first of them known."""
        self._expect(config[RUN])

    def reset_config(self, new_config: Mapping[str, Any]) -> bool:
        """Another trial comes into this process, where everything is loaded already."""
        try:
            self.cleanup()
        except Exception:
            _log.exception("the trial before could not be closed")
        self._expect(new_config[RUN])
        return True

    def _expect(self, settings: TrialSettings) -> None:
        self._settings: TrialSettings | None = settings
        self._stack = ExitStack()
        self._is_over = True  # until it has begun
        self._known: dict[str, float] = {}

    def _begin(self, settings: TrialSettings) -> None:
        self._settings = None
        run_dir = Path(settings.run_dir)
        try:
            composed, self._experiment = compose_trial(settings)
            cloned = list_checkpoints(clone_folder(run_dir))
            checkpoints = cloned or list_checkpoints(run_dir / "checkpoints")
            resume_from = checkpoints[-1] if checkpoints else None
            _prepare_folder(run_dir, composed, resume_from is not None)
            self._run_dir = run_dir
            self._stack.callback(log_to_file(run_dir))
            stored, manifest = load_checkpoint(resume_from) if resume_from else (None, {})
            last_result = manifest.get("result", {})
            self._records = self._stack.enter_context(
                RunRecords(self._experiment, composed, run_dir, last_result, resume_from, 0.0)
            )
            self._trainer = self._stack.enter_context(
                Trainer(self._experiment, loads_modules=resume_from is None, run_dir=run_dir)
            )
            if stored is not None:
                self._trainer.set_state(stored)
            self._run = Run(self._experiment, self._trainer, self._records)
            self._run.begin()
            if cloned:
                self._records.save_checkpoint(self._trainer)  # of its own, with its own values
                remove_clone(run_dir)
            self._newest = self._newest_on_disk()
            self._saved_at = self._time
            self._is_over = False
        except Exception as error:
            _log.exception("the trial could not begin")
            self._stack.close()
            reason = str(error) if isinstance(error, RunnerError) else f"{type(error).__name__}: {error}"
            run_dir.mkdir(parents=True, exist_ok=True)
            write_result(run_dir / "result.json", {"status": "failed", "stop_reason": reason})
            raise

    @property
    def _time(self) -> float:
        """What schedulers go by."""
        return self._records.last_result.get(self._experiment.sweep.time_attr) or 0

    def step(self) -> dict[str, Any]:
        """An iteration: its metrics, the objective where it is known, and the time that schedulers go by.

        The last one brings `done` and `stop_reason`.
        """
        if self._settings is not None:
            self._begin(self._settings)
        run = self._run
        if run.stop_reason is None:  # a run that goes on may have met it already
            try:
                with run.failure_recorded():
                    run.advance()
                    self._save_for_population()
            except Exception:
                self._is_over = True
                raise
        metrics = {name: value for name, value in self._records.last_result.items() if value is not None}
        objectives = self._experiment.objectives
        # Evaluations do not come with every iteration.
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

    def _save_for_population(self) -> None:
        """A checkpoint wherever it may be paused, give its state to another trial, or lose it."""
        interval = self._experiment.perturbation_interval
        if interval is None:
            return
        if self._time - self._saved_at >= interval:
            self._save()
        self._newest = self._newest_on_disk()

    def _save(self) -> None:
        self._records.save_checkpoint(self._trainer)
        self._saved_at = self._time
        self._newest = self._newest_on_disk()

    def _end(self, status: Any, reason: str) -> None:
        self._is_over = True
        self._run.end(status, reason)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """The run writes a checkpoint of its own: its population pauses it, or gives its state to another trial."""
        if not self._is_over:
            self._save()

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing: `setup` goes on from the run's newest one."""

    def cleanup(self) -> None:
        """The scheduler, or the end of the sweep, ends this trial."""
        try:
            if not self._is_over and not self._goes_on_elsewhere:
                self._end("interrupted", "ended by the sweep")
        finally:
            self._is_over = True
            self._stack.close()

    @property
    def _goes_on_elsewhere(self) -> bool:
        """Whether its population has paused it, so that this run dir may be another process's by now."""
        if self._experiment.perturbation_interval is None:
            return False
        is_saved = self._saved_at == self._time
        return is_saved or clone_folder(self._run_dir).exists() or self._newest != self._newest_on_disk()

    def _newest_on_disk(self) -> list[Path]:
        return list_checkpoints(self._run_dir / "checkpoints")[-1:]


def _prepare_folder(run_dir: Path, composed: Composed, goes_on: bool) -> None:
    """What Hydra writes for a run; what a killed run left without a checkpoint is done again."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "result.json").unlink(missing_ok=True)  # of an earlier end
    if not goes_on:
        (run_dir / "progress.jsonl").unlink(missing_ok=True)
        shutil.rmtree(run_dir / "checkpoints", ignore_errors=True)
    hydra_dir = run_dir / ".hydra"
    hydra_dir.mkdir(exist_ok=True)
    OmegaConf.save(OmegaConf.create(dict(composed.unresolved)), hydra_dir / "config.yaml")
    OmegaConf.save(OmegaConf.create(list(composed.overrides)), hydra_dir / "overrides.yaml")
