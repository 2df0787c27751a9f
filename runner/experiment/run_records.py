"""The records of a run: progress.jsonl, result.json, checkpoints, MLflow, and the display."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from runner.checkpoints import CheckpointFolder, read_manifest
from runner.checkpoints.checkpoint import origin_of
from runner.checkpoints.folder import module_sources
from runner.config.algorithms import algorithm_name
from runner.config.blocks import ASYNC
from runner.config.errors import RunFailure, RunnerError, UserError
from runner.config.metrics import COMPILE_S, NUM_ENV_RESTARTS, NUM_HEALTHY, NUM_RESTARTS
from runner.config.operators import ENV_RUNNERS, RECORDED_DATA
from runner.config.plans.compilation import COMPILE_AUTO, compiles
from runner.config.plans.needs import needs_of
from runner.config.plans.training_ratio import describe_updates, find_few_updates
from runner.config.references import with_references
from runner.config.schemas import ExperimentConfig
from runner.config.signatures import prepare_key
from runner.experiment.mlflow_runs import (
    continued_run,
    experiment_name_of,
    find_store,
    information_tags,
    known_run,
    mlflow_settings,
    run_name_of,
)
from runner.experiment.run_folder import RunFolder, check_unused
from runner.experiment.stop_criteria import fewest_episodes
from runner.interrupts import Interrupted
from runner.learners.compile_obstacle import find_compile_obstacle
from runner.locks import FolderLost
from runner.tracking.display import DisplayInfo, LoggedDisplay
from runner.tracking.display_modes import make_display
from runner.tracking.further_trackers import FurtherTrackers, TrackedRun
from runner.tracking.headline import (
    ENV_STEPS,
    EVALUATION_RETURN,
    RETURN,
    ROWS_READ,
    RunSummary,
    resume_command,
    summary_lines,
)
from runner.tracking.mlflow_tracker import MLflowTracker, RunStatus
from runner.tracking.progress_log import ProgressLog, write_result
from runner.tracking.run_info import flatten_parameters, run_info
from runner.videos import SUFFIXES

if TYPE_CHECKING:  # a sweep's driver process does not import torch
    from runner.experiment.trainer import Trainer, TrainerProvenance
    from runner.plans import Result
    from runner.plans.run_parts import RunParts
    from runner.storage.uploads import Uploads

Status = Literal["finished", "failed", "interrupted"]

_RESTARTED = {
    NUM_RESTARTS: "env runner",
    NUM_ENV_RESTARTS: "sub-environment",
    "fault_tolerance/num_learner_restarts": "learner",
}
_log = logging.getLogger(__name__)

_QUEUED_LEARNER = "offline_data/queued_blocks_learner"
_BEFORE_THE_FIRST: Mapping[str, int] = {"training_iteration": 0, ENV_STEPS: 0}  # result before the first iteration
# Longest waits at the end of a run: for the run's id from MLflow, and for MLflow to write everything.
_MLFLOW_PATIENCE_S, _SHORT_PATIENCE_S = 30.0, 1.0
_MLFLOW_STATUS: Mapping[Status, RunStatus] = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


def _names_of_algorithms(config: ExperimentConfig) -> str:
    """Return the name of the run's algorithm, and the names of algorithms of single modules."""
    names = {key: algorithm_name(algorithm) for key, algorithm in config.algorithms.items()}
    own = {key.split(".")[2]: name for key, name in names.items() if key != "algorithm"}
    return ", ".join([names["algorithm"], *(f"{name} for {module_id}" for module_id, name in own.items())])


def _data_source(config: ExperimentConfig) -> str:
    if ENV_RUNNERS not in needs_of(config):
        source = config.offline.input_ or config.offline.offline_data_class
        return f"recorded data in {', '.join(source) if isinstance(source, list) else source}"
    if config.env.is_external:
        return "external simulators"
    runners, num_envs = config.env_runners, config.env_runners.num_envs_per_env_runner
    copies = "1 copy" if num_envs == 1 else f"{num_envs} copies"
    if runners.max_env_runners:
        count = _range_text(runners.min_env_runners, runners.max_env_runners)
        return f"{count} env runner{'' if count == '1' else 's'} with {copies} each"
    is_apart = runners.gym_env_vectorize_mode == ASYNC
    return f"{copies}, each in a process" if is_apart else f"{copies} in this process"


def _range_text(fewest: int, most: int) -> str:
    return str(most) if fewest == most else f"{fewest} to {most}"


class RunRecords:
    """The files, the tracking and the display of one run.

    MLflow's process starts immediately and gets ready while the experiment is built.

    Args:
        config: configuration of the experiment.
        provenance: origin of the configuration, and the checkpoint that the run resumes.
        folder: run dir.
        last_result: result in the checkpoint that the run resumes; empty for a new run.
        start_time_s: Unix time of the start of the run, for MLflow.

    Raises:
        UserError: the run dir contains a run, or cannot be written.
    """

    _mlflow_status: RunStatus = "FAILED"  # of a run that ends without `finish`
    _patience_s = _MLFLOW_PATIENCE_S

    def __init__(
        self,
        config: ExperimentConfig,
        provenance: TrainerProvenance,
        folder: RunFolder,
        last_result: Result,
        start_time_s: float,
    ) -> None:
        composed, resume_from, is_trusted = provenance.composed, provenance.checkpoint, provenance.is_trusted
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
        self._uploads = _start_uploads(config, run_dir, resume_from, self._display.note)
        self._known_run = {}
        if resume_from is not None and config.tracking.mlflow:
            self._known_run = continued_run(resume_from.parent.parent, self._display.note, is_trusted)
        is_own = resume_from is None or is_trusted or origin_of(read_manifest(resume_from)) is None
        self._store = find_store(config, run_dir, self._known_run, is_own) if config.tracking.mlflow else None
        self._further = self._start_further_trackers(is_own)
        self._tracker = self._start_tracker(start_time_s)
        self._progress = ProgressLog(run_dir / "progress.jsonl")
        self._checkpoints = CheckpointFolder(run_dir, config.checkpoint, self._is_held)
        self._checkpoint: Path | None = None
        self._started = time.perf_counter()

    def __enter__(self) -> RunRecords:
        config = self._config
        num_evaluating = config.evaluation.evaluation_num_env_runners
        num_remote = config.env_runners.max_env_runners + num_evaluating
        if RECORDED_DATA in needs_of(config):  # the trainer reports when it has found the data
            return self
        if num_remote and config.engine != "inline":  # nothing else is shown until they have started
            number = _range_text(config.env_runners.min_env_runners + num_evaluating, num_remote)
            self._display.note(f"starting {number} env runner{'' if num_remote == 1 else 's'} ...")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, (Interrupted, KeyboardInterrupt)):  # before training began
            self._mlflow_status = "KILLED"
        self._give_up_uploads()
        self._progress.close()
        self._further.close()
        self._display.finish([])
        warning = self._tracker.finish(self._mlflow_status, self._patience_s) if self._tracker else None
        if warning:
            _log.warning("%s", warning)
            with suppress(OSError):  # the terminal is closed
                print(warning, file=sys.stderr, flush=True)

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
        if self._tracker is not None:
            self._tracker.log_data_sets(data_sets)

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
        self._further.log(result)
        if self._tracker is not None:
            self._tracker.log_metrics(int(result[ENV_STEPS] or 0), result)

    def write_files(self, parts: RunParts, is_final: bool = False) -> None:
        """Write the files of parts that have new content."""
        with self._folder.writing():
            parts.write_files(self.run_dir, is_final)

    def _report_restarts(self, result: Result) -> None:
        for metric, role in _RESTARTED.items():
            restarts = int(result.get(metric) or 0)
            if restarts > self._num_restarts[metric]:
                self._num_restarts[metric] = restarts
                self._display.note(f"{restarts} {role} restarts so far, see {self.run_dir / 'runner.log'}")

    def _report_number(self, result: Result) -> None:
        """Show a line if the number of env runners has changed since the last iteration."""
        number = int(result.get(NUM_HEALTHY) or 0)
        if self._config.env_runners.is_elastic and number != self._num_runners:
            self._num_runners = number
            self._display.note(f"{number} env runner{' samples' if number == 1 else 's sample'} now")

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
        if self._tracker is not None:
            for path in paths:
                self._tracker.log_artifact(path, "videos")

    def finish(self, status: Status, reason: str) -> None:
        """Write result.json and show how the run ended."""
        self._mlflow_status = _MLFLOW_STATUS[status]
        newest, best = self._checkpoint or self._resume_from, self._checkpoints.best()
        result = {
            **self.last_result,
            "status": status,
            "stop_reason": reason,
            "mlflow_run_id": self._tracker.run_id(self._patience_s) if self._tracker else None,
            "checkpoint": None if newest is None else str(newest),
            "best_checkpoint": str(best[0]) if best else None,
        }
        # Report the failure of the run, not an error while writing this file.
        with suppress(*([RunFailure] if status == "failed" else [])), self._folder.writing():
            write_result(self.run_dir / "result.json", result)
        if self._tracker is not None:
            self._tracker.log_artifact(self.run_dir / "result.json")
        lines = summary_lines(self._summary(status, reason, newest))
        if self._uploads is not None:
            self._uploads.finish(self._checkpoints.prune)
        self._display.finish(lines, is_done=status == "finished")

    def _is_held(self, checkpoint: Path) -> bool:
        return self._uploads is not None and self._uploads.holds(checkpoint)

    def stop_waiting(self) -> None:
        """Cancel all uploads, and do not wait for MLflow, whose process continues to write."""
        self._patience_s = _SHORT_PATIENCE_S
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
        config, loaded, replay = self._config, trainer.loaded_modules, trainer.replay_memory
        facts = {
            "environment": f"{config.env.name}, {_data_source(config)}",
            "algorithm": f"{_names_of_algorithms(config)}, seed {config.seed}",
            "run dir": str(self.run_dir),
        }
        if updates := describe_updates(config):
            facts["updates"] = updates
        if warning := find_few_updates(config):
            facts["warning"] = warning
        if self._uploads is not None:
            facts["upload to"] = self._uploads.url
        for one in loaded:
            name = "module" if len(loaded) == 1 else f"module {one.module_id}"
            facts[name] = str(one)
        for buffer in replay:
            facts["replay" if len(replay) == 1 else f"replay {buffer.name}"] = str(buffer)
        return DisplayInfo(
            title=config.experiment_name or "",
            facts=facts,
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
            tracking_uri=self._store.tracking_uri if self._store else None,
            resume_command=None if newest is None else resume_command(self.run_dir if self._checkpoint else newest),
        )

    # -- MLflow ----------------------------------------------------------------------------------------------------

    def _parameters(self) -> dict[str, str]:
        return flatten_parameters(with_references(dataclasses.asdict(self._config), self._composed.references))

    def _source_tags(self) -> dict[str, str]:
        """Return tags that name the sources of loaded modules; a resumed run already has these tags."""
        sources = [] if self._resume_from else list(module_sources(self._config).values())
        run_ids = [known_run(source.checkpoint.parent.parent, is_trusted=True).get("run_id") for source in sources]
        values: dict[str, Sequence[str | None]] = {
            "load_state.checkpoint": [str(source.checkpoint) for source in sources],
            "load_state.digest": [source.digest for source in sources],
            "load_state.run_id": run_ids,
        }
        return {tag: ", ".join(dict.fromkeys(filter(None, found))) for tag, found in values.items() if any(found)}

    def _start_further_trackers(self, is_own: bool) -> FurtherTrackers:
        config = self._config
        run = TrackedRun(
            self.run_dir,
            experiment_name_of(config),
            run_name_of(config, self.run_dir),
            self._parameters(),
            int(self._first_result.get(ENV_STEPS) or 0),
            is_own,
        )
        return FurtherTrackers(config.tracking.extra_trackers, run, self._display.note)

    def _start_tracker(self, start_time_s: float) -> MLflowTracker | None:
        if self._store is None:
            return None
        files = [self.run_dir / name for name in (".hydra/config.yaml", ".hydra/overrides.yaml", "environment.json")]
        settings = dataclasses.replace(
            mlflow_settings(self._config, self.run_dir, self._store, self._known_run),
            start_time_s=start_time_s,
            params=self._parameters(),
            tags=information_tags(self._info) | self._source_tags(),
            artifacts=[(str(file), "config") for file in files if file.exists()],
        )
        tracker = MLflowTracker(settings, self.run_dir, warn=self._display.note)
        tracker.start()
        return tracker


def _start_uploads(
    config: ExperimentConfig, run_dir: Path, resume_from: Path | None, note: Callable[[str], None]
) -> Uploads | None:
    if config.checkpoint.upload_to is None:
        return None
    from runner.storage.uploads import Uploads  # imports fsspec

    return Uploads(config.checkpoint.upload_to, run_dir, resume_from, note)
