"""A sweep in MLflow: one parent run, its trials as children, written by one process."""

from __future__ import annotations

import csv
import dataclasses
import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.config.composed import Composed
from runner.config.references import with_references
from runner.config.schemas import ExperimentConfig
from runner.experiment.run_records import find_store, information_tags, known_run, mlflow_settings
from runner.sweep.ranking import Ranking, rank_folder
from runner.sweep.space import SEED, Value
from runner.sweep.statistics import estimate_curve
from runner.sweep.trials import SweepFolder, Trial
from runner.tracking import MLflowSettings, MLflowTracker, RunStatus, flatten_parameters, run_info
from runner.tracking.headline import ENV_STEPS
from runner.tracking.series import on_common_grid, read_columns

_log = logging.getLogger(__name__)
_STATISTICS = ("mean", "iqm", "low", "high")
_NUM_POINTS = 100  # of the curves over seeds
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
        composed_of: the configuration of a trial, composed and checked.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        folder: SweepFolder,
        composed_of: Callable[[Trial], tuple[Composed, ExperimentConfig]],
    ) -> None:
        self._config = config
        self._folder = folder
        self._composed_of = composed_of
        self._tracker: MLflowTracker | None = None
        if not config.tracking.mlflow:
            return
        path = folder.path.absolute()
        known = known_run(path, _log.warning, folder.is_trusted)
        self._store = find_store(config, path, known, is_own=folder.origin is None)
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
        """Take in that a trial has begun or ended."""
        if self._tracker is None:
            return
        if trial.status == "running":
            self._tracker.start_child(str(trial.number), self._settings_of(trial))
            if self._config.perturbation_interval is not None:
                self._log_values(trial, int(trial.result.get(ENV_STEPS, 0)))
        else:
            self._tracker.finish_child(str(trial.number), _STATUS[trial.status])

    def _settings_of(self, trial: Trial) -> MLflowSettings:
        run_dir = self._folder.run_dir(trial).absolute()
        composed, config = self._composed_of(trial)
        return dataclasses.replace(
            mlflow_settings(config, run_dir, self._store, known_run(run_dir, is_trusted=self._folder.is_trusted)),
            params=flatten_parameters(with_references(dataclasses.asdict(config), composed.references)),
            tags={**self._tags, "sweep.trial": str(trial.number), "sweep.values": " ".join(trial.overrides)},
        )

    def update(self, trial: Trial) -> None:
        """Take in an iteration of a trial."""
        if self._tracker is not None:
            self._tracker.log_metrics(int(trial.result.get(ENV_STEPS, 0)), trial.result, child=str(trial.number))

    def mutate(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """Take in that a trial goes on from another one's state; `row` as in `mutations.jsonl`."""
        if self._tracker is not None:
            self._log_values(trial, int(row["num_env_steps"]))

    def _log_values(self, trial: Trial, step: int) -> None:
        """Log the numbers among the values of a trial as metrics: a population changes them."""
        numbers = {f"sweep/{key.lstrip('+')}": _number(value) for key, value in trial.values.items()}
        found = {name: number for name, number in numbers.items() if number is not None}
        if self._tracker is not None and found:
            self._tracker.log_metrics(step, found, child=str(trial.number))

    def finish(self, status: RunStatus) -> None:
        """Log the end of the sweep with its best trial."""
        if self._tracker is None:
            return
        mutations = self._folder.mutations()
        if mutations:
            self._tracker.log_artifact(_write_table(self._folder.path / "mutations.csv", _mutation_rows(mutations)))
        ranking = rank_folder(self._folder)
        if self._folder.searched["space"].get(SEED):
            self._log_seeds(self._tracker, ranking)
        best = ranking.best
        if best is not None:
            params = {f"best.{key}": value for key, _, value in (text.partition("=") for text in best.overrides)}
            self._tracker.describe({"best.trial": str(best.number), "best.reason": ranking.reason, **params}, {})
            self._tracker.log_metrics(int(best.result.get(ENV_STEPS, 0)), best.result)
        warning = self._tracker.finish(status)
        if warning:
            print(warning, file=sys.stderr, flush=True)

    def _log_seeds(self, tracker: MLflowTracker, ranking: Ranking) -> None:
        """Log statistics over seeds: a table of all combinations, and curves of the best one over env steps."""
        metric = ranking.metric
        table = [["values", "metric", *_STATISTICS, "num"]]
        for group, estimate in ranking.estimates():
            numbers = [f"{getattr(estimate, name):.6g}" for name in _STATISTICS]
            table.append([" ".join(group.overrides), metric, *numbers, str(estimate.num)])
        tracker.log_artifact(_write_table(self._folder.path / "seeds.csv", table))
        best = [trial for group in ranking.groups[:1] for trial in group.trials]
        read = [read_columns(self._folder.run_dir(trial), [metric, ENV_STEPS]) for trial in best]
        lines = [(columns[ENV_STEPS], columns[metric]) for columns in read if metric in columns]
        if not lines:
            return
        steps, values = on_common_grid(lines, _NUM_POINTS)
        curve = estimate_curve(values)
        for place, step in enumerate(steps):
            point = {f"seeds/{name}/{metric}": float(getattr(curve, name)[place]) for name in _STATISTICS}
            tracker.log_metrics(int(step), {name: value for name, value in point.items() if math.isfinite(value)})


def _number(value: Value) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def _mutation_rows(mutations: Sequence[Mapping[str, Any]]) -> Iterator[list[Any]]:
    """Yield a row for each value that a population has changed."""
    names = ("trial", "donor", "iteration", "num_env_steps")
    yield [*names, "key", "before", "after"]
    for row in mutations:
        for key, after in row["after"].items():
            yield [*(row[name] for name in names), key, row["before"][key], after]


def _write_table(file: Path, rows: Iterable[Sequence[Any]]) -> Path:
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(rows)
    return file
