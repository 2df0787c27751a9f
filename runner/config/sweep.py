"""The `sweep` block: how runs of one experiment are made from the values that overrides list; its rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from runner.config.blocks import CheckpointConfig
from runner.config.errors import Problem, Where, show_value
from runner.config.fields import option

POPULATIONS = ("pbt", "pb2")


@dataclass(frozen=True)
class SweepConfig:
    """What `-m` does with overrides such as `algorithm.lr=1e-4,3e-4`; a single run reads `metric` and `mode` only."""

    search: str = option(
        "grid",
        "which combinations: grid tries all, random draws num_samples, tpe lets Optuna propose num_samples",
        choices=("grid", "random", "tpe"),
    )
    scheduler: str = option(
        "none",
        "none: every trial runs to its end; asha stops bad ones; in pbt and pb2 they take over the state of good ones",
        choices=("none", "asha", *POPULATIONS),
    )
    metric: str | list[str] | None = option(
        None, "metric that trials are judged by; a list: by its first, all in the Pareto table; null: checkpoint.metric"
    )
    mode: str | list[str] | None = option(
        None,
        "whether a high or a low metric is better, or a list with one mode for each metric; null: checkpoint.mode",
        choices=("max", "min"),
    )
    num_samples: int | None = option(
        None, "combinations that random and tpe try; each is run with all seeds", minimum=1
    )
    max_concurrent_trials: int | None = option(None, "trials at once; null: as many as there is room for", minimum=1)
    max_failures: int = option(0, "retries of a trial that fails, each from its last checkpoint", minimum=0)
    seed: int = option(0, "seed of the draws and shuffles of the search itself", minimum=0)
    time_attr: str = option("num_env_steps_sampled_lifetime", "the metric that schedulers count time in")
    max_t: float | None = option(None, "asha: length of a trial, in time_attr; null: stop.<time_attr>", above=0)
    grace_period: float | None = option(
        None, "asha: shortest trial that may be stopped, in time_attr; null: max_t / reduction_factor^2", above=0
    )
    reduction_factor: float = option(4.0, "asha: one in so many goes on at each rung", above=1)
    perturbation_interval: float | None = option(
        None, "pbt, pb2: time between comparisons of trials, in time_attr; null: stop.<time_attr> / 10", above=0
    )
    quantile_fraction: float = option(
        0.25,
        "pbt, pb2: share of worst trials that take over the state of a trial of the equally large share of best",
        above=0,
        maximum=0.5,
    )
    resample_probability: float = option(
        0.25, "pbt: probability that a value is drawn anew instead of changed by a fifth", minimum=0, maximum=1
    )
    synch: bool = option(False, "pbt, pb2: compare once all trials have come equally far, instead of each on its own")
    name: str | None = option(None, "name of the folder in outputs/EXPERIMENT/sweeps; null: made from the overrides")
    on_change: str = option(
        "refuse",
        "the folder holds a sweep with another search space: refuse, or extend it by the new combinations",
        choices=("refuse", "extend"),
    )


def find_sweep_problems(
    sweep: SweepConfig, checkpoint: CheckpointConfig, stop: dict[str, int | float], where: Where
) -> Iterator[Problem]:
    """Yield the problems of a block whose fields are valid one by one; metric names are checked elsewhere."""
    metric, mode = sweep.metric or checkpoint.metric, sweep.mode or checkpoint.mode
    num_metrics = 1 if isinstance(metric, str) else len(metric)
    if num_metrics == 0 or (not isinstance(mode, str) and len(mode) != num_metrics):
        what = "sweep.mode must be one mode for all metrics, or one for each of sweep.metric"
        yield Problem(what, where("sweep.mode"), f"{show_value(metric)} and {show_value(mode)}")
    unknown = [] if isinstance(mode, str) else [name for name in mode if name not in ("max", "min")]
    if unknown:
        yield Problem("sweep.mode is not one of its choices", where("sweep.mode"), show_value(unknown[0]), "max, min")
    if sweep.search != "grid" and sweep.num_samples is None:
        what = f"sweep.search {sweep.search} draws without end: it needs sweep.num_samples"
        yield Problem(what, where("sweep.num_samples"), "null", "sweep.num_samples=16")
    if sweep.search == "grid" and sweep.num_samples is not None:
        what = "sweep.num_samples is for sweep.search random and tpe: a grid tries every combination once"
        yield Problem(what, where("sweep.num_samples"), str(sweep.num_samples), "null")
    ends_by = f"a stop criterion stop.{sweep.time_attr.replace('/', '.')}"
    if sweep.scheduler == "asha" and sweep.max_t is None and sweep.time_attr not in stop:
        what = f"sweep.scheduler asha needs sweep.max_t, or {ends_by}"
        yield Problem(what, where("sweep.max_t"), "null", "sweep.max_t=50000")
    end = sweep.max_t or stop.get(sweep.time_attr)
    if sweep.scheduler == "asha" and end is not None and end <= (sweep.grace_period or 0):
        what = "sweep.grace_period is not before the end of a trial (sweep.max_t or its stop criterion)"
        yield Problem(what, where("sweep.grace_period"), str(sweep.grace_period or 0), f"below {end:g}")
    if sweep.scheduler in POPULATIONS:
        yield from _find_population_problems(sweep, where, sweep.time_attr in stop, ends_by)


def _find_population_problems(sweep: SweepConfig, where: Where, has_end: bool, ends_by: str) -> Iterator[Problem]:
    scheduler = f"sweep.scheduler {sweep.scheduler}"
    if sweep.perturbation_interval is None and not has_end:
        what = f"{scheduler} needs sweep.perturbation_interval, or {ends_by}"
        yield Problem(what, where("sweep.perturbation_interval"), "null", "sweep.perturbation_interval=20000")
    if sweep.search == "tpe":
        what = f"{scheduler} changes values while trials run: nothing is left for tpe to propose"
        yield Problem(what, where("sweep.search"), "tpe", "random, grid")
    if sweep.max_concurrent_trials is not None:
        what = f"{scheduler}: a population takes turns where there is no room for all, so it cannot be limited"
        yield Problem(what, where("sweep.max_concurrent_trials"), str(sweep.max_concurrent_trials), "null")
