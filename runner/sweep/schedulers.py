"""Tune's schedulers as `sweep.scheduler` names them, which go on after an earlier start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, TrialScheduler

from runner.compat.ray_tune import rename_in_rungs
from runner.config.schemas import ExperimentConfig
from runner.config.sweep import POPULATIONS
from runner.sweep.population import Population
from runner.sweep.trial_settings import OBJECTIVE, RUN, TIME, Earlier
from runner.sweep.trials import SweepFolder
from runner.tracking import ProgressLog


def make_scheduler(config: ExperimentConfig, earlier: Earlier, population: Population) -> TrialScheduler:
    """Return the scheduler of `sweep.scheduler`.

    Args:
        config: of one of the trials.
        earlier: what the trials of an earlier start reported.
        population: what becomes of trials where they are one.
    """
    sweep = config.sweep
    if sweep.scheduler in POPULATIONS:
        from runner.sweep.population_schedulers import make_population  # imports scikit-learn

        return make_population(config, population, earlier)
    if sweep.scheduler == "asha":
        end = sweep.max_t or config.stop[sweep.time_attr]
        grace_period = sweep.grace_period or end / sweep.reduction_factor**2
        mode = next(iter(config.objectives.values()))
        return ResumableASHA(earlier, mode, end, grace_period, sweep.reduction_factor)
    return FIFOScheduler()  # type: ignore[no-untyped-call]


def read_earlier(config: ExperimentConfig, folder: SweepFolder) -> Earlier:
    """Return what the trials of an earlier start reported with the values that they have now."""
    last_mutation = {row["trial"]: row["iteration"] for row in folder.mutations()}
    metric = next(iter(config.objectives))
    return {
        trial.number: _reports(
            ProgressLog(folder.run_dir(trial) / "progress.jsonl").read(),
            metric,
            config.sweep.time_attr,
            last_mutation.get(trial.number, 0),
        )
        for trial in folder.trials
    }


class ResumableASHA(AsyncHyperBandScheduler):
    """Asynchronous successive halving that knows how far the trials of an earlier start came.

    Args:
        earlier: what these trials reported, by number.
        mode, max_t, grace_period, reduction_factor: as of Tune's class.
    """

    def __init__(
        self,
        earlier: Earlier,
        mode: str,
        max_t: float,
        grace_period: float,
        reduction_factor: float,
    ) -> None:
        super().__init__(TIME, OBJECTIVE, mode, max_t, grace_period, reduction_factor)  # type: ignore[arg-type]
        for number, results in earlier.items():
            trial: Any = SimpleNamespace(trial_id=_earlier_id(number))
            super().on_trial_add(None, trial)  # type: ignore[arg-type]
            for result in results:
                self.on_trial_result(None, trial, dict(result))  # type: ignore[arg-type]

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Keep the place in the rungs of a trial that goes on."""
        super().on_trial_add(tune_controller, trial)
        rename_in_rungs(self, _earlier_id(trial.config[RUN].number), trial.trial_id)


def _reports(
    results: Iterable[Mapping[str, Any]], metric: str, time_attr: str, after_iteration: int
) -> list[dict[str, Any]]:
    """Return what a trial reported with these metrics."""
    reports: list[dict[str, Any]] = []
    value = None
    for result in results:
        value = value if result.get(metric) is None else result[metric]
        is_new = result.get("training_iteration", 0) > after_iteration
        if is_new and value is not None and result.get(time_attr) is not None:
            reports.append({OBJECTIVE: value, TIME: result[time_attr]})
    return reports


def _earlier_id(number: int) -> str:
    return f"earlier-{number}"
