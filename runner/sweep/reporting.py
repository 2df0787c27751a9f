"""Forward Tune's events of trials to the file of trials, the display and MLflow."""

from __future__ import annotations

import csv
import dataclasses
import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ray.tune import Callback, Stopper

from runner.config.composed import Composed
from runner.config.documents import parse_json
from runner.config.references import with_references
from runner.config.schemas import ExperimentConfig
from runner.experiment.mlflow_runs import continued_run, find_store, information_tags, mlflow_settings
from runner.interrupts import reason_to_end
from runner.sweep.display import SweepDisplay
from runner.sweep.space import SEED, Value
from runner.sweep.statistics import Ranking, estimate_curve, rank_folder
from runner.sweep.trial_settings import METRICS, STOP_REASON
from runner.sweep.trials import SweepFolder, Trial
from runner.tracking.headline import ENV_STEPS
from runner.tracking.mlflow_tracker import MLflowSettings, MLflowTracker, RunStatus
from runner.tracking.run_info import flatten_parameters, run_info
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
    """Records a sweep in MLflow, if `tracking.mlflow` is set.

    Args:
        config: configuration of one of the trials.
        folder: folder of the sweep.
        composed_of: returns the composed and checked configuration of a trial.
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
        known = continued_run(path, _log.warning, folder.is_trusted)
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
        """Record that a trial has begun or ended."""
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
        known = continued_run(run_dir, is_trusted=self._folder.is_trusted)
        return dataclasses.replace(
            mlflow_settings(config, run_dir, self._store, known),
            params=flatten_parameters(with_references(dataclasses.asdict(config), composed.references)),
            tags={**self._tags, "sweep.trial": str(trial.number), "sweep.values": " ".join(trial.overrides)},
        )

    def update(self, trial: Trial) -> None:
        """Record an iteration of a trial."""
        if self._tracker is not None:
            self._tracker.log_metrics(int(trial.result.get(ENV_STEPS, 0)), trial.result, child=str(trial.number))

    def mutate(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """Record that a trial continues from the state of another trial; `row` is a row of `mutations.jsonl`."""
        if self._tracker is not None:
            self._log_values(trial, int(row["num_env_steps"]))

    def _log_values(self, trial: Trial, step: int) -> None:
        """Log the numeric values of a trial as metrics, because a population changes them."""
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


class SweepReporter(Callback):
    """Writes each change of a trial into the sweep's folder and shows it.

    Args:
        folder: folder of the sweep.
        by_trial_id: trials by Tune's id.
        display: shows the changes.
        tracking: records them in MLflow.
        config: configuration of one of the trials.
    """

    def __init__(
        self,
        folder: SweepFolder,
        by_trial_id: Mapping[str, Trial],
        display: SweepDisplay,
        tracking: SweepTracking,
        config: ExperimentConfig,
    ) -> None:
        self._folder = folder
        self._by_trial_id = by_trial_id
        self._display = display
        self._tracking = tracking
        self._time_attr = config.sweep.time_attr
        self._max_t = config.sweep.max_t if config.sweep.scheduler == "asha" else None
        self._end_reason: str | None = None
        self._last_to_end: list[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune pickles its callbacks for a restore that is never used."""
        return {}

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Once an end is requested, remember which trials are in the middle of an iteration."""
        if self._last_to_end is None and reason_to_end() is not None:
            self._end_reason = reason_to_end()
            self._last_to_end = [trial for trial in trials if trial.status == "RUNNING"]

    @property
    def can_end(self) -> bool:
        """Whether an end was requested, and the iterations that ran at that time are done."""
        return self._last_to_end is not None and all(trial.status != "RUNNING" for trial in self._last_to_end)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        known = self._by_trial_id[trial.trial_id]
        if known.status != "running":
            self._change(known, "running", "")

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any) -> None:
        known = self._by_trial_id[trial.trial_id]
        known.result = dict(result[METRICS])
        if result.get("done"):
            known.reason = str(result.get(STOP_REASON, ""))
        self._tracking.update(known)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        known = self._by_trial_id[trial.trial_id]
        if known.reason:
            self._change(known, "finished", known.reason)
        elif self._max_t is not None and known.result.get(self._time_attr, 0) >= self._max_t:
            self._change(known, "finished", f"sweep.max_t {self._max_t:g} reached")
        elif reason_to_end() is None:
            self._change(known, "stopped", "its scheduler stopped it: others were better")
        # Otherwise it is interrupted, see `interrupt_running`.

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._by_trial_id[trial.trial_id].num_failures += 1

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        known = self._by_trial_id[trial.trial_id]
        if known.status != "running":  # it failed before it began
            self._change(known, "running", "")
        known.num_failures += 1
        self._change(known, "failed", self._reason(known) or _last_line(trial))

    def _reason(self, trial: Trial) -> str:
        """Return the reason why the run of a failed trial failed, or an empty string if it did not write the reason."""
        try:
            result = parse_json((self._folder.run_dir(trial) / "result.json").read_text())
        except (OSError, ValueError):
            return ""
        return str(result.get("stop_reason") or "") if result.get("status") == "failed" else ""

    def _change(self, trial: Trial, status: Any, reason: str) -> None:
        trial.status, trial.reason = status, reason
        self._folder.write(trial)
        self._tracking.change(trial)
        self._display.change(self._folder, trial)

    def report_mutation(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """Record and show that a trial continues from another trial; `row` is a row of `mutations.jsonl`."""
        self._tracking.mutate(trial, row)
        self._display.mutate(trial, row)

    def interrupt_running(self) -> bool:
        """Mark the unfinished trials of a sweep that has ended; return whether there were any."""
        running = [trial for trial in self._folder.trials if trial.status in ("running", "waiting")]
        for trial in running:
            self._change(trial, "interrupted", self._end_reason or "the sweep was interrupted")
        return bool(running)


def _last_line(trial: Any) -> str:
    """Return Ray's last message about a dead actor."""
    error = trial.get_error()
    text = str(error) if error is not None else "it ended without an error message"
    return next((line for line in reversed(text.splitlines()) if line.strip()), text)


class EndsWhenAsked(Stopper):
    """After a request to end, ends each trial after its current iteration, however long that takes."""

    def __init__(self, reporting: SweepReporter) -> None:
        self._reporting = reporting

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune pickles its stoppers for a restore that is never used."""
        return {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return reason_to_end() is not None

    def stop_all(self) -> bool:
        return self._reporting.can_end
