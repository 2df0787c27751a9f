"""Checks of the `sweep` block against the metrics and stop criteria of the experiment."""

from __future__ import annotations

from collections.abc import Iterator

from runner.config.composed import Composed
from runner.config.errors import Problem, show_value
from runner.config.schemas import ExperimentConfig
from runner.config.sweep import POPULATIONS, SweepConfig


def find_sweep_problems(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Yield the problems of a block whose fields are valid one by one; metric names are checked elsewhere."""
    sweep = config.sweep
    metric, mode = sweep.metric or config.checkpoint.metric, sweep.mode or config.checkpoint.mode
    num_metrics = 1 if isinstance(metric, str) else len(metric)
    if num_metrics == 0 or (not isinstance(mode, str) and len(mode) != num_metrics):
        what = "sweep.mode must be one mode for all metrics, or one for each of sweep.metric"
        yield Problem(what, composed.where("sweep.mode"), f"{show_value(metric)} and {show_value(mode)}")
    unknown = [] if isinstance(mode, str) else [name for name in mode if name not in ("max", "min")]
    if unknown:
        yield Problem(
            "sweep.mode is not one of its choices", composed.where("sweep.mode"), show_value(unknown[0]), "max, min"
        )
    if sweep.search != "grid" and sweep.num_samples is None:
        what = f"sweep.search {sweep.search} draws without end: it needs sweep.num_samples"
        yield Problem(what, composed.where("sweep.num_samples"), "null", "sweep.num_samples=16")
    if sweep.search == "grid" and sweep.num_samples is not None:
        what = "sweep.num_samples is for sweep.search random and tpe: a grid tries every combination once"
        yield Problem(what, composed.where("sweep.num_samples"), str(sweep.num_samples), "null")
    ends_by = f"a stop criterion stop.{sweep.time_attr.replace('/', '.')}"
    if sweep.scheduler == "asha" and sweep.max_t is None and sweep.time_attr not in config.stop:
        what = f"sweep.scheduler asha needs sweep.max_t, or {ends_by}"
        yield Problem(what, composed.where("sweep.max_t"), "null", "sweep.max_t=50000")
    end = sweep.max_t or config.stop.get(sweep.time_attr)
    if sweep.scheduler == "asha" and end is not None and end <= (sweep.grace_period or 0):
        what = "sweep.grace_period is not before the end of a trial (sweep.max_t or its stop criterion)"
        yield Problem(what, composed.where("sweep.grace_period"), str(sweep.grace_period or 0), f"below {end:g}")
    if sweep.scheduler in POPULATIONS:
        yield from _find_population_problems(sweep, composed, sweep.time_attr in config.stop, ends_by)


def _find_population_problems(sweep: SweepConfig, composed: Composed, has_end: bool, ends_by: str) -> Iterator[Problem]:
    scheduler = f"sweep.scheduler {sweep.scheduler}"
    if sweep.perturbation_interval is None and not has_end:
        what = f"{scheduler} needs sweep.perturbation_interval, or {ends_by}"
        yield Problem(what, composed.where("sweep.perturbation_interval"), "null", "sweep.perturbation_interval=20000")
    if sweep.search == "tpe":
        what = f"{scheduler} changes values while trials run: nothing is left for tpe to propose"
        yield Problem(what, composed.where("sweep.search"), "tpe", "random, grid")
    if sweep.max_concurrent_trials is not None:
        what = f"{scheduler}: a population takes turns where there is no room for all, so it cannot be limited"
        yield Problem(what, composed.where("sweep.max_concurrent_trials"), str(sweep.max_concurrent_trials), "null")
