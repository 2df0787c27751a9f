"""One run: the training loop with its files, its tracking, its checkpoints and its end."""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runner.builder import plain
from runner.checkpoints import CheckpointFolder, load_checkpoint
from runner.config.compose import Composed
from runner.config.errors import Problem, RunFailure, RunnerError
from runner.config.schemas import ExperimentConfig
from runner.dataflow.run_metrics import Result
from runner.tracking import (
    Display,
    DisplayInfo,
    MLflowSettings,
    MLflowTracker,
    ProgressLog,
    RunSummary,
    flatten_parameters,
    make_display,
    resolve_store,
    resume_command,
    run_info,
    summary_lines,
    write_result,
)
from runner.trainer import Trainer

EXIT_FINISHED, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 130
_MLFLOW_FILE = "mlflow_run.json"
_RETURN = "env_runners/episode_return_mean"
_EVALUATION_RETURN = "evaluation/env_runners/episode_return_mean"
_MLFLOW_START_S = 30.0  # longest wait, at the end of a very short run, for MLflow to say the run's id
_STATUS_IN_MLFLOW = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}

_log = logging.getLogger(__name__)


def run_experiment(config: ExperimentConfig, composed: Composed, run_dir: Path, resume_from: Path | None = None) -> int:
    """Train until a stop criterion is met; the exit code.

    Args:
        config: the experiment.
        composed: where its values came from; recorded with the run.
        run_dir: for progress.jsonl, result.json and checkpoints.
        resume_from: a checkpoint to go on from.

    Raises:
        ConfigError: the experiment cannot be built; nothing has been trained.
    """
    run_dir = run_dir.absolute()
    state, manifest = load_checkpoint(resume_from) if resume_from else ({}, {})
    tracker = _start_tracker(config, composed, run_dir, _known_run_id(resume_from))
    display = make_display(config.tracking.display)  # type: ignore[arg-type]
    status = "FAILED"
    try:
        with Trainer(config) as trainer:
            if state:
                trainer.set_state(state)
            run = _Run(config, composed, run_dir, trainer, tracker, display, manifest.get("result", {}))
            exit_code = run.train_until_stopped()
            status = _STATUS_IN_MLFLOW[run.status]
            return exit_code
    finally:
        if tracker is not None:
            tracker.finish(status)  # type: ignore[arg-type]
        display.finish([])


class _Run:
    """The training loop and what it leaves behind."""

    def __init__(
        self,
        config: ExperimentConfig,
        composed: Composed,
        run_dir: Path,
        trainer: Trainer,
        tracker: MLflowTracker | None,
        display: Display,
        last_result: Result,
    ) -> None:
        self._config = config
        self._composed = composed
        self._run_dir = run_dir
        self._trainer = trainer
        self._tracker = tracker
        self._display = display
        self._result: Result = dict(last_result)
        self._first_result: Result = dict(last_result)
        self._checkpoints = CheckpointFolder(run_dir, config.checkpoint)
        self._checkpoint: Path | None = None
        self._progress = ProgressLog(run_dir / "progress.jsonl")
        self._best_return: float | None = None
        self._started = time.perf_counter()
        self.status = "failed"

    def train_until_stopped(self) -> int:
        """The training loop."""
        self._progress.truncate_after(self._trainer.training_iteration)
        self._display.start(self._display_info())
        reason = "stopped before its first iteration"
        try:
            with _interrupts() as interrupted:
                while (stop := self._stop_reason()) is None and not interrupted:
                    result = self._trainer.train()
                    if self._stop_reason(result) and not _is_evaluated(result) and self._evaluates:
                        result |= self._trainer.evaluate()
                    self._record(result)
                    if self._is_checkpoint_due(result):
                        self._save_checkpoint()
                self._save_checkpoint()
            self.status = "finished" if stop else "interrupted"
            reason = stop or f"{interrupted[0]}; a checkpoint was written"
            return EXIT_FINISHED if stop else EXIT_INTERRUPTED
        except RunnerError as error:
            reason = str(error)
            raise
        except KeyboardInterrupt:
            self.status, reason = "interrupted", "second interrupt; the last checkpoint stands"
            return EXIT_INTERRUPTED
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            _log.exception("the run failed")
            where = f"runner itself, or code of yours that it called; stack trace in {self._run_dir / 'runner.log'}"
            raise RunFailure(Problem(reason, where=where)) from error
        finally:
            self._close(reason)

    # -- the loop's parts ------------------------------------------------------------------------------------------

    @property
    def _evaluates(self) -> bool:
        return self._config.evaluation.evaluation_interval is not None

    def _stop_reason(self, result: Mapping[str, Any] | None = None) -> str | None:
        """The first stop criterion that is met, None when the run goes on."""
        result = self._result if result is None else result
        for metric, bound in self._config.stop.items():
            value = result.get(metric)
            if value is not None and value >= bound:
                return f"{metric} {value:g} >= {bound:g}"
        return None

    def _record(self, result: Result) -> None:
        self._result = result
        self._progress.append(result)
        self._display.update(result)
        value = result[_RETURN]
        if value is not None and (self._best_return is None or value > self._best_return):
            self._best_return = value
        if self._tracker is not None:
            numbers = {name: number for name, number in result.items() if number is not None}
            self._tracker.log_metrics(int(result["num_env_steps_sampled_lifetime"] or 0), numbers)

    def _is_checkpoint_due(self, result: Result) -> bool:
        every = self._config.checkpoint.every_iterations
        return every is not None and self._trainer.training_iteration % every == 0

    def _save_checkpoint(self) -> None:
        """Write a checkpoint of the last iteration unless there is one."""
        iteration = self._trainer.training_iteration
        if iteration == 0 or (self._checkpoint and self._checkpoint.name == f"iteration_{iteration:06d}"):
            return
        manifest = {
            "config": dict(self._composed.unresolved),
            "overrides": list(self._composed.overrides),
            "experiment": self._composed.experiment,
            "info": run_info(),
        }
        self._checkpoint = self._checkpoints.save(self._trainer.get_state(), manifest, self._result)

    # -- start and end ---------------------------------------------------------------------------------------------

    def _display_info(self) -> DisplayInfo:
        config = self._config
        env = config.env._target_ or config.env.env
        num_envs = config.env_runners.num_envs_per_env_runner
        num_remote = config.env_runners.num_env_runners
        where = f"{num_remote} env runners x {num_envs}" if num_remote else f"{num_envs} in this process"
        facts = {
            "environment": f"{env}, {where}",
            "algorithm": f"{type(config.algorithm).__name__.removesuffix('Config')}, seed {config.seed}",
            "run dir": str(self._run_dir),
        }
        return DisplayInfo(config.experiment_name or "", facts, config.stop, self._first_result)

    def _close(self, reason: str) -> None:
        self._progress.close()
        run_id = self._tracker.run_id(_MLFLOW_START_S) if self._tracker else None
        best = self._checkpoints.best()
        result = {
            **self._result,
            "status": self.status,
            "stop_reason": reason,
            "mlflow_run_id": run_id,
            "checkpoint": str(self._checkpoint) if self._checkpoint else None,
            "best_checkpoint": str(best[0]) if best else None,
        }
        write_result(self._run_dir / "result.json", result)
        if self._tracker is not None:
            self._tracker.log_artifact(self._run_dir / "result.json", None)
        self._display.finish(summary_lines(self._summary(reason)))

    def _summary(self, reason: str) -> RunSummary:
        steps = int(self._result.get("num_env_steps_sampled_lifetime") or 0)
        before = int(self._first_result.get("num_env_steps_sampled_lifetime") or 0)
        store = _store(self._config, self._run_dir) if self._tracker else None
        return RunSummary(
            status=self.status,
            stop_reason=reason.splitlines()[0],
            iterations=self._trainer.training_iteration,
            env_steps=steps,
            time_s=time.perf_counter() - self._started,
            env_steps_this_run=steps - before,
            run_dir=self._run_dir,
            last_return=self._result.get(_RETURN),
            best_return=self._best_return,
            evaluation_return=self._result.get(_EVALUATION_RETURN),
            checkpoint=self._checkpoint,
            tracking_uri=store.tracking_uri if store else None,
            resume_command=resume_command(self._run_dir) if self._checkpoint else None,
        )


def _is_evaluated(result: Mapping[str, Any]) -> bool:
    return _EVALUATION_RETURN in result


@contextmanager
def _interrupts() -> Iterator[list[str]]:
    """Names of SIGINT and SIGTERM received in the block; the second one raises KeyboardInterrupt."""
    received: list[str] = []

    def handle(number: int, _frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(signal.Signals(number).name)

    try:
        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: whoever runs us there handles signals
        before = {}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _outputs_dir(run_dir: Path) -> Path:
    """The folder named `outputs` around the run dir, else the run dir's parent."""
    return next((parent for parent in run_dir.parents if parent.name == "outputs"), run_dir.parent)


def _store(config: ExperimentConfig, run_dir: Path) -> Any:
    tracking = config.tracking
    return resolve_store(tracking.tracking_uri, tracking.artifact_location, _outputs_dir(run_dir))


def _start_tracker(
    config: ExperimentConfig, composed: Composed, run_dir: Path, run_id: str | None
) -> MLflowTracker | None:
    """Start MLflow's process; it gets ready while the experiment is built."""
    if not config.tracking.mlflow:
        return None
    store = _store(config, run_dir)
    info = run_info()
    tags = {"git_revision": str(info["git"]["revision"]), "git_dirty": str(info["git"]["dirty"])}
    tags |= {f"version.{name}": version for name, version in info["versions"].items()}
    settings = MLflowSettings(
        tracking_uri=store.tracking_uri,
        artifact_location=store.artifact_location,
        experiment_name=config.tracking.experiment_name or config.experiment_name or "custom",
        run_name=config.tracking.run_name or "/".join(run_dir.parts[-2:]),
        run_id=run_id,
        params=flatten_parameters(plain(config)),
        tags=tags,
        artifacts=_write_environment(run_dir, info),
        flush_interval_s=config.tracking.flush_interval_s,
        run_file=str(run_dir / _MLFLOW_FILE),
    )
    tracker = MLflowTracker(settings, run_dir)
    tracker.start()
    return tracker


def _known_run_id(checkpoint: Path | None) -> str | None:
    """MLflow's run of the run that a checkpoint belongs to."""
    path = checkpoint.parent.parent / _MLFLOW_FILE if checkpoint else None
    if path is None or not path.exists():
        return None
    return str(json.loads(path.read_text())["run_id"])


def _write_environment(run_dir: Path, info: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Write versions, machine and command beside Hydra's records; what MLflow keeps as artifacts."""
    path = run_dir / "environment.json"
    write_result(path, info)
    hydra_files = [run_dir / ".hydra" / name for name in ("config.yaml", "overrides.yaml")]
    return [(str(file), "config") for file in (*hydra_files, path) if file.exists()]
