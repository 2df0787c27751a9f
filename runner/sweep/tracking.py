"""A sweep in MLflow: one parent run, its trials as children, written by one process."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping

from runner.config.schemas import ExperimentConfig
from runner.run_records import find_store, information_tags, known_run, mlflow_settings
from runner.sweep.trials import SweepFolder, Trial, best_first
from runner.tracking import MLflowSettings, MLflowTracker, RunStatus, flatten_parameters, run_info

_ENV_STEPS = "num_env_steps_sampled_lifetime"
_STATUS: Mapping[str, RunStatus] = {
    "finished": "FINISHED",
    "stopped": "FINISHED",
    "interrupted": "KILLED",
    "failed": "FAILED",
}


class SweepTracking:
    """Records a sweep, where `tracking.mlflow` is set.

    Args:
        config: of one of its trials.
        folder: of the sweep.
        config_of: the configuration of a trial.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        folder: SweepFolder,
        config_of: Callable[[Trial], ExperimentConfig],
    ) -> None:
        self._config = config
        self._folder = folder
        self._config_of = config_of
        self._tracker: MLflowTracker | None = None
        if not config.tracking.mlflow:
            return
        path = folder.path.absolute()
        known = known_run(path)
        self._store = find_store(config, path, known)
        self._tags = information_tags(run_info())
        space = {f"space.{key}": str(values) for key, values in folder.searched["space"].items()}
        sweep = {f"sweep.{name}": str(value) for name, value in dataclasses.asdict(config.sweep).items()}
        settings = dataclasses.replace(
            mlflow_settings(config, path, self._store, known),
            params={**space, **sweep},
            tags={**self._tags, "sweep.overrides": " ".join(folder.searched["overrides"])},
        )
        self._tracker = MLflowTracker(settings, path)
        self._tracker.start()

    def change(self, trial: Trial) -> None:
        """A trial has begun or ended."""
        if self._tracker is None:
            return
        if trial.status == "running":
            self._tracker.start_child(str(trial.number), self._settings_of(trial))
        else:
            self._tracker.finish_child(str(trial.number), _STATUS[trial.status])

    def _settings_of(self, trial: Trial) -> MLflowSettings:
        run_dir = self._folder.run_dir(trial).absolute()
        config = self._config_of(trial)
        return dataclasses.replace(
            mlflow_settings(config, run_dir, self._store, known_run(run_dir)),
            params=flatten_parameters(config),
            tags={**self._tags, "sweep.trial": str(trial.number), "sweep.values": " ".join(trial.overrides)},
        )

    def update(self, trial: Trial) -> None:
        """A trial has done an iteration."""
        if self._tracker is not None:
            self._tracker.log_metrics(int(trial.result.get(_ENV_STEPS, 0)), trial.result, child=str(trial.number))

    def finish(self, status: RunStatus) -> None:
        """The sweep is over: its best trial is told with it."""
        if self._tracker is None:
            return
        ranked = [trial for trial in best_first(self._folder.trials, self._config.objectives) if trial.result]
        if ranked:
            best = ranked[0]
            params = {f"best.{key}": value for key, _, value in (text.partition("=") for text in best.overrides)}
            self._tracker.describe({"best.trial": str(best.number), **params}, {})
            self._tracker.log_metrics(int(best.result.get(_ENV_STEPS, 0)), best.result)
        warning = self._tracker.finish(status)
        if warning:
            print(warning, file=sys.stderr, flush=True)
