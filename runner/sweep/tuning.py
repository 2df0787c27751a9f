"""Run one sweep: its trials through Ray Tune, its results, and its end."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import ray
from ray import tune

from runner.cluster import connected
from runner.config.exit_codes import ExitCode
from runner.config.schemas import ExperimentConfig
from runner.experiment.ray_resources import bundles_of, total
from runner.interrupts import interrupts
from runner.sweep.display import SweepDisplay
from runner.sweep.reporting import EndsWhenAsked, SweepReporter, SweepTracking
from runner.sweep.schedulers import Population, coordinates, make_scheduler, read_earlier
from runner.sweep.space import SearchSpace, combination_key, without_seed
from runner.sweep.trial_settings import RUN, TrialSettings, compose_trial
from runner.sweep.trial_source import TrialSource, make_proposals
from runner.sweep.trial_trainable import TrialTrainable
from runner.sweep.trials import SweepFolder, Trial
from runner.tracking.mlflow_tracker import RunStatus

_SCRATCH = ".tune-"
_MOST_WAITING = 1000
_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # trials write their own files
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # no episode may have ended in the first iterations
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # `EndsWhenAsked` replaces it: Tune's kills trials after ten seconds
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # paths in the configuration are relative to the working directory of the command
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # the sweep's folder has all state that is needed to continue
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
}


def run_sweep(
    space: SearchSpace,
    configs: Sequence[ExperimentConfig],
    folder: SweepFolder,
    config_dir: Path | None,
    display: SweepDisplay,
) -> int:
    """Run the rest of a sweep; return the exit code.

    Args:
        space: the search space.
        configs: checked configurations, enough to contain each value.
        folder: folder of the sweep.
        config_dir: folder with the user's experiments.
        display: shows the sweep.

    Raises:
        ConfigError: the cluster does not have the resources for one of its trials; nothing was started.
    """
    config = configs[0]
    bundles = [bundles_of(one) for one in configs]
    totals = [total(one) for one in bundles]
    largest = {name: max(one.get(name, 0.0) for one in totals) for name in dict.fromkeys(chain(*totals))}
    needed_by = "env_runners, evaluation, learners and offline of a trial, and one CPU for its trainer"
    display.start(folder)
    with ExitStack() as stack:
        stack.enter_context(interrupts())
        stack.enter_context(connected(config.ray, largest, needed_by, display.note, list(chain(*bundles))))
        sweep = _Sweep(space, config, folder, config_dir, display)
        stack.callback(sweep.finish)
        stack.callback(lambda: display.finish(folder, is_interrupted=sweep.status == "KILLED"))
        sweep.run()
    if sweep.status == "KILLED":
        return ExitCode.INTERRUPTED
    return ExitCode.FAILED if any(trial.status == "failed" for trial in folder.trials) else ExitCode.FINISHED


class _Sweep:
    def __init__(
        self,
        space: SearchSpace,
        config: ExperimentConfig,
        folder: SweepFolder,
        config_dir: Path | None,
        display: SweepDisplay,
    ) -> None:
        self._space = space
        self._config = config
        self._folder = folder
        self._config_dir = None if config_dir is None else str(config_dir.absolute())
        self._display = display
        self.status: RunStatus = "FAILED"
        self._tracking = SweepTracking(config, folder, lambda trial: compose_trial(self._settings_of(trial)))

    def finish(self) -> None:
        """Close all resources, however the sweep ended."""
        self._tracking.finish(self.status)

    def run(self) -> None:
        """Run trials until none is left."""
        # Number of pending trials: all of a population; with only one, each would wait until the process of the
        # previous one has started.
        num_waiting = int(ray.cluster_resources().get("CPU", 1))  # type: ignore[no-untyped-call]
        if self._config.perturbation_interval is not None:
            num_waiting = _MOST_WAITING
        environment = {**_ENVIRONMENT, "TUNE_MAX_PENDING_TRIALS_PG": str(max(1, num_waiting))}
        os.environ.update({name: os.environ.get(name, value) for name, value in environment.items()})
        for name in ("ray.tune", "ray.train", "ray.air"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # runs report their failures
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray Tune warns about its own future
            self._run()

    def _run(self) -> None:
        config, folder, sweep = self._config, self._folder, self._config.sweep
        metric, mode = next(iter(config.objectives.items()))
        num_known = len({combination_key(without_seed(trial.combination)) for trial in folder.trials})
        proposals = make_proposals(self._space, sweep, mode, num_known)
        source = TrialSource(self._space, folder, proposals, sweep.num_samples, metric, self._to_tune)
        reporting = SweepReporter(folder, source.by_trial_id, self._display, self._tracking, config)
        population = Population(self._space, folder, sweep.time_attr, reporting.report_mutation)
        population.recover()
        for leftover in folder.path.glob(f"{_SCRATCH}*"):  # left by a killed sweep
            shutil.rmtree(leftover, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=folder.path.absolute()))
        try:
            tuner = tune.Tuner(
                TrialTrainable,
                tune_config=tune.TuneConfig(
                    search_alg=source,
                    scheduler=make_scheduler(config, read_earlier(config, folder), population),
                    num_samples=-1,
                    max_concurrent_trials=sweep.max_concurrent_trials,
                    reuse_actors=True,
                ),
                run_config=tune.RunConfig(
                    name="sweep",
                    storage_path=str(scratch),
                    callbacks=[reporting],
                    stop=EndsWhenAsked(reporting),
                    failure_config=tune.FailureConfig(max_failures=sweep.max_failures),
                    checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                    verbose=0,
                ),
            )
            tuner.fit()
            self.status = "FINISHED"
        except KeyboardInterrupt:  # the second one
            self.status = "KILLED"
        finally:
            if reporting.interrupt_running() or not source.is_exhausted:
                self.status = "KILLED" if self.status == "FINISHED" else self.status
            shutil.rmtree(scratch, ignore_errors=True)

    def _settings_of(self, trial: Trial) -> TrialSettings:
        run_dir = str(self._folder.run_dir(trial).absolute())
        return TrialSettings(trial.number, trial.values, self._space.fixed, run_dir, self._config_dir)

    def _to_tune(self, trial: Trial) -> dict[str, Any]:
        return {**coordinates(self._config, self._space, trial.values), RUN: self._settings_of(trial)}
