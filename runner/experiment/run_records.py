"""The records of a run: progress.jsonl, result.json, checkpoints, MLflow, and the display."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from runner.checkpoints import CheckpointFolder
from runner.config.errors import RunFailure, RunnerError, UserError
from runner.config.metrics import COMPILE_S, NUM_ENV_RESTARTS, NUM_HEALTHY, NUM_RESTARTS
from runner.config.operators import ENV_RUNNERS, RECORDED_DATA
from runner.config.plans.compilation import COMPILE_AUTO, compiles
from runner.config.plans.needs import needs_of
from runner.config.schemas import ExperimentConfig
from runner.config.signatures import prepare_key
from runner.experiment.run_facts import run_facts, starting_text
from runner.experiment.run_folder import RunFolder, check_unused
from runner.experiment.run_tracking import RunTracking
from runner.experiment.stop_criteria import fewest_episodes
from runner.interrupts import Interrupted
from runner.learners.compile_obstacle import find_compile_obstacle
from runner.locks import FolderLost
from runner.tracking.display import DisplayInfo, LoggedDisplay
from runner.tracking.display_modes import make_display
from runner.tracking.headline import (
    ENV_STEPS,
    EVALUATION_RETURN,
    RETURN,
    ROWS_READ,
    RunSummary,
    Status,
    resume_command,
)
from runner.tracking.progress_log import ProgressLog, write_result
from runner.tracking.run_info import run_info
from runner.videos import SUFFIXES

if TYPE_CHECKING:  # a sweep's driver process does not import torch
    from runner.experiment.trainer import Trainer, TrainerProvenance
    from runner.plans import Result
    from runner.plans.run_parts import RunParts
    from runner.storage.uploads import Uploads

_RESTARTED = {
    NUM_RESTARTS: "env runner",
    NUM_ENV_RESTARTS: "sub-environment",
    "fault_tolerance/num_learner_restarts": "learner",
}
_QUEUED_LEARNER = "offline_data/queued_blocks_learner"
_BEFORE_THE_FIRST: Mapping[str, int] = {"training_iteration": 0, ENV_STEPS: 0}  # result before the first iteration


class RunRecords:
    """The files, the tracking and the display of one run.

    Args:
        config: configuration of the experiment.
        provenance: origin of the configuration, and the checkpoint that the run resumes.
        folder: run dir.
        last_result: result in the checkpoint that the run resumes; empty for a new run.
        start_time_s: Unix time of the start of the run, for MLflow.

    Raises:
        UserError: the run dir contains a run, or cannot be written.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        provenance: TrainerProvenance,
        folder: RunFolder,
        last_result: Result,
        start_time_s: float,
    ) -> None:
        composed, resume_from = provenance.composed, provenance.checkpoint
        self.run_dir = run_dir = folder.path
        self._folder = folder
        self.last_result: Result = dict(last_result)
        self._first_result: Result = dict(last_result)
        self._best_return: float | None = None
        self._num_restarts = {metric: int(last_result.get(metric) or 0) for metric in _RESTARTED}
        self._config, self._composed, self._resume_from, self._num_runners = config, composed, resume_from, 0
        self._info = run_info()
        check_unused(run_dir, resume_from)
        try:
            if resume_from is None:
                folder.write_configuration(composed)
            write_result(run_dir / "environment.json", self._info)
        except OSError as error:
            raise UserError(f"the run dir cannot be written: {error}") from error
        self._display = LoggedDisplay(make_display(config.tracking.display))  # type: ignore[arg-type]
        num_env_steps, note = int(last_result.get(ENV_STEPS) or 0), self._display.note
        self._uploads = _start_uploads(config, run_dir, resume_from, note)
        self._tracking = RunTracking(config, provenance, run_dir, self._info, num_env_steps, start_time_s, note)
        self._progress = ProgressLog(run_dir / "progress.jsonl")
        self._checkpoints = CheckpointFolder(run_dir, config.checkpoint, self._is_held)
        self._checkpoint: Path | None = None
        self._started = time.perf_counter()

    def __enter__(self) -> RunRecords:
        if text := starting_text(self._config):  # nothing else is shown until they have started
            self._display.note(text)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, (Interrupted, KeyboardInterrupt)):  # before training began
            self._tracking.status = "interrupted"
        self._give_up_uploads()
        self._progress.close()
        self._display.finish([])
        self._tracking.close()

    # -- training -------------------------------------------------------------------------------------------------

    def start(self, trainer: Trainer) -> None:
        """Show what will run, and drop lines and checkpoints of later iterations than the trainer's.

        A killed run leaves such lines behind. A run that is resumed from an older checkpoint also has such checkpoints.
        """
        iteration, data_sets = trainer.training_iteration, trainer.data_sets()
        with self._folder.writing():
            has_dropped = self._checkpoints.drop_after(iteration)  # before their lines, in case of a kill in between
            self._progress.truncate_after(iteration)
        if has_dropped and self._uploads is not None:
            self._uploads.request()
        returns = [line.get(RETURN) for line in (self._first_result, *self._progress.read())]
        self._best_return = max((value for value in returns if value is not None), default=None)
        self._started = time.perf_counter()
        self._display.start(self._display_info(trainer))
        unsigned = prepare_key()
        if unsigned is not None:
            self._display.note(unsigned)
        if RECORDED_DATA in needs_of(self._config) and not self._config.offline.materialize_mapped_data:
            self._display.note(f"waiting for the first batch of {data_sets[0]} ...")
        if compiles(self._config):
            obstacle = find_compile_obstacle() if self._config.learners.compile == COMPILE_AUTO else None
            text = "the first update compiles, which takes seconds to a minute ..."
            self._display.note(text if obstacle is None else f"updates are not compiled: {obstacle}")
        self._tracking.log_data_sets(data_sets)

    def add(self, result: Result) -> None:
        """Record an iteration."""
        self.last_result = result
        with self._folder.writing():
            self._progress.append(result)
        self._display.update(result)
        self._report_restarts(result)
        self._report_number(result)
        if compile_s := result.get(COMPILE_S):
            self._display.note(f"compiled the updates in {compile_s:.1f} s of iteration {result['training_iteration']}")
        value = result.get(RETURN)
        if value is not None and (self._best_return is None or value > self._best_return):
            self._best_return = value
        self._tracking.log(result)

    def write_files(self, parts: RunParts, is_final: bool = False) -> None:
        """Write the files of parts that have new content."""
        with self._folder.writing():
            parts.write_files(self.run_dir, is_final)

    def _report_restarts(self, result: Result) -> None:
        for metric, role in _RESTARTED.items():
            restarts = int(result.get(metric) or 0)
            if restarts > self._num_restarts[metric]:
                self._num_restarts[metric] = restarts
                self._display.note(f"{role} restarts so far: {restarts}; see {self.run_dir / 'runner.log'}")

    def _report_number(self, result: Result) -> None:
        """Show a line if the number of env runners has changed since the last iteration."""
        number = int(result.get(NUM_HEALTHY) or 0)
        if self._config.env_runners.is_elastic and number != self._num_runners:
            self._num_runners = number
            self._display.note(f"{number} env runner{' is' if number == 1 else 's are'} sampling now")

    def save_checkpoint(self, trainer: Trainer) -> None:
        """Write a checkpoint of the last iteration if there is none yet, and call the callbacks.

        A checkpoint within an iteration replaces the checkpoint before it.
        """
        iteration = trainer.training_iteration
        has_one = self._checkpoint is not None and self._checkpoint.name == f"iteration_{iteration:06d}"
        if not trainer.parts.metrics.is_partial_iteration and (iteration == 0 or has_one):
            return
        manifest = {
            "config": dict(self._composed.unresolved),
            "overrides": list(self._composed.overrides),
            "experiment": self._composed.experiment,
            "info": self._info,
        }
        state = trainer.get_state()
        with self._folder.writing():
            self._checkpoint = self._checkpoints.save(state, manifest, self.last_result or _BEFORE_THE_FIRST)
        if self._uploads is not None:
            self._uploads.request()
        trainer.callbacks.call("on_checkpoint_saved", path=self._checkpoint)

    def record_video(self, trainer: Trainer) -> None:
        """Record a video of the policy as MP4 and GIF, for the run dir and MLflow; note failures."""
        stem = self.run_dir / "videos" / f"iteration_{trainer.training_iteration:06d}"
        paths = [stem.with_suffix(suffix) for suffix in SUFFIXES]
        try:
            with self._folder.writing():
                trainer.evaluator.record_videos(trainer.parts, paths, self._config.evaluation.num_video_episodes)
        except FolderLost:
            raise
        except RunnerError as error:
            self._display.note(f"iteration {trainer.training_iteration} was not recorded as a video: {error}")
            return
        for path in paths:
            self._tracking.log_artifact(path, "videos")

    def finish(self, status: Status, reason: str) -> None:
        """Write result.json and show how the run ended."""
        self._tracking.status = status
        newest, best = self._checkpoint or self._resume_from, self._checkpoints.best()
        result = {
            **self.last_result,
            "status": status,
            "stop_reason": reason,
            "mlflow_run_id": self._tracking.run_id(),
            "checkpoint": None if newest is None else str(newest),
            "best_checkpoint": str(best[0]) if best else None,
        }
        # Report the failure of the run, not an error while writing this file.
        with suppress(*([RunFailure] if status == "failed" else [])), self._folder.writing():
            write_result(self.run_dir / "result.json", result)
        self._tracking.log_artifact(self.run_dir / "result.json")
        lines = self._summary(status, reason, newest).lines()
        if self._uploads is not None:
            self._uploads.finish(self._checkpoints.prune)
        self._display.finish(lines, is_done=status == "finished")

    def _is_held(self, checkpoint: Path) -> bool:
        return self._uploads is not None and self._uploads.holds(checkpoint)

    def stop_waiting(self) -> None:
        """Cancel all uploads, and do not wait for MLflow, whose process continues to write."""
        self._tracking.stop_waiting()
        self._give_up_uploads()

    def _give_up_uploads(self) -> None:
        if self._uploads is not None:
            self._uploads.give_up()

    def note(self, text: str) -> None:
        """Show a permanent line."""
        self._display.note(text)

    def announce(self, addresses: Sequence[str], text: str) -> None:
        """Show the addresses for simulators, and write them to `rllink.json` in the run dir."""
        content = {"addresses": list(addresses), "pid": os.getpid()}
        with self._folder.writing():
            (self.run_dir / "rllink.json").write_text(json.dumps(content) + "\n")
        for line in text.splitlines():
            self.note(line)

    # -- summaries -----------------------------------------------------------------------------------------------------

    def _display_info(self, trainer: Trainer) -> DisplayInfo:
        config, url = self._config, None if self._uploads is None else self._uploads.url
        return DisplayInfo(
            title=config.experiment_name or "",
            facts=run_facts(config, self.run_dir, url, trainer.loaded_modules, trainer.replay_memory),
            stop=config.stop,
            fewest_episodes=fewest_episodes(config),
            initial=self._first_result,
            best_return=self._best_return,
            samples_episodes=ENV_RUNNERS in needs_of(config),
        )

    def _summary(self, status: Status, reason: str, newest: Path | None) -> RunSummary:
        earlier_s = float(self._first_result.get("time_total_s") or 0.0)
        seconds, rows_read = time.perf_counter() - self._started, self.last_result.get(ROWS_READ)
        is_streaming = self.last_result.get(_QUEUED_LEARNER) is not None
        return RunSummary(
            status=status,
            stop_reason=(reason.splitlines() or [""])[0],
            iterations=int(self.last_result.get("training_iteration") or 0),
            env_steps=int(self.last_result.get(ENV_STEPS) or 0),
            time_s=earlier_s + seconds,
            rows_read=None if rows_read is None else int(rows_read),
            rows_per_s=rows_read / seconds if rows_read is not None and is_streaming else None,
            run_dir=self.run_dir,
            last_return=self.last_result.get(RETURN),
            best_return=self._best_return,
            evaluation_return=self.last_result.get(EVALUATION_RETURN),
            checkpoint=newest,
            tracking_uri=self._tracking.uri,
            resume_command=None if newest is None else resume_command(self.run_dir if self._checkpoint else newest),
        )


def _start_uploads(
    config: ExperimentConfig, run_dir: Path, resume_from: Path | None, note: Callable[[str], None]
) -> Uploads | None:
    if config.checkpoint.upload_to is None:
        return None
    from runner.storage.uploads import Uploads  # imports fsspec

    return Uploads(config.checkpoint.upload_to, run_dir, resume_from, note)
