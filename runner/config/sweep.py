"""The `sweep` block, and its rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from runner.config.blocks import CheckpointConfig
from runner.config.errors import Problem, show_value
from runner.config.fields import option

POPULATIONS = ("pbt", "pb2")


@dataclass(frozen=True)
class SweepConfig:
    """Search over overrides such as `algorithm.lr=1e-4,3e-4`; single runs use `metric` and `mode` only."""

    search: str = option(
        "grid",
        "combinations to run: grid: all; random: num_samples draws; tpe: num_samples proposals of Optuna",
        choices=("grid", "random", "tpe"),
    )
    scheduler: str = option(
        "none",
        "none: run every trial to its end; asha: stop bad trials; pbt, pb2: bad trials copy the state of good ones",
        choices=("none", "asha", *POPULATIONS),
    )
    metric: str | list[str] | None = option(
        None,
        "metric that ranks trials; a list: the first ranks them, the Pareto table has all; null: checkpoint.metric",
    )
    mode: str | list[str] | None = option(
        None,
        "whether a high or a low metric is better, or a list with one mode per metric; null: checkpoint.mode",
        choices=("max", "min"),
    )
    num_samples: int | None = option(
        None, "number of combinations for random and tpe; each runs with all seeds", minimum=1
    )
    max_concurrent_trials: int | None = option(
        None, "maximum number of concurrent trials; null: limited by resources only", minimum=1
    )
    max_failures: int = option(0, "retries of a failed trial, each from its last checkpoint", minimum=0)
    seed: int = option(0, "seed of the search", minimum=0)
    time_attr: str = option("num_env_steps_sampled_lifetime", "metric that schedulers use as time")
    max_t: float | None = option(None, "asha: length of a trial, in time_attr; null: stop.<time_attr>", above=0)
    grace_period: float | None = option(
        None, "asha: shortest trial that may be stopped, in time_attr; null: max_t / reduction_factor^2", above=0
    )
    reduction_factor: float = option(4.0, "asha: at each rung, keep the best 1/reduction_factor of the trials", above=1)
    perturbation_interval: float | None = option(
        None, "pbt, pb2: time between comparisons of trials, in time_attr; null: stop.<time_attr> / 10", above=0
    )
    quantile_fraction: float = option(
        0.25,
        "pbt, pb2: share of the worst trials that copy the state of one of the equally large share of the best",
        above=0,
        maximum=0.5,
    )
    resample_probability: float = option(
        0.25, "pbt: probability of drawing a new value instead of changing the old one by 20 %", minimum=0, maximum=1
    )
    synch: bool = option(False, "pbt, pb2: compare when all trials have reached the same time, instead of one by one")
    name: str | None = option(None, "name of the folder in outputs/EXPERIMENT/sweeps; null: a digest of the overrides")
    on_change: str = option(
        "refuse",
        "if the folder contains a sweep with another search space: fail, or extend it by the new combinations",
        choices=("refuse", "extend"),
    )


def find_sweep_problems(
    sweep: SweepConfig, checkpoint: CheckpointConfig, stop: dict[str, int | float]
) -> Iterator[Problem]:
    """Yield problems between fields that are valid one by one. Metric names are checked elsewhere."""
    if sweep.name == "":
        yield Problem("sweep.name is empty", "sweep.name", '""', "a name, or null")
    metric, mode = sweep.metric or checkpoint.metric, sweep.mode or checkpoint.mode
    num_metrics = 1 if isinstance(metric, str) else len(metric)
    if num_metrics == 0 or (not isinstance(mode, str) and len(mode) != num_metrics):
        what = "sweep.mode must be a single mode, or a list with one mode per metric of sweep.metric"
        yield Problem(what, "sweep.mode", f"{show_value(metric)} and {show_value(mode)}")
    unknown = [] if isinstance(mode, str) else [name for name in mode if name not in ("max", "min")]
    if unknown:
        yield Problem("sweep.mode is not one of its choices", "sweep.mode", show_value(unknown[0]), "max, min")
    if sweep.search != "grid" and sweep.num_samples is None:
        what = f"sweep.search={sweep.search} needs sweep.num_samples"
        yield Problem(what, "sweep.num_samples", "null", "sweep.num_samples=16")
    if sweep.search == "grid" and sweep.num_samples is not None:
        what = "sweep.num_samples has no effect with sweep.search=grid, which runs every combination once"
        yield Problem(what, "sweep.num_samples", str(sweep.num_samples), "null")
    ends_by = f"a stop criterion stop.{sweep.time_attr.replace('/', '.')}"
    if sweep.scheduler == "asha" and sweep.max_t is None and sweep.time_attr not in stop:
        what = f"sweep.scheduler=asha needs sweep.max_t, or {ends_by}"
        yield Problem(what, "sweep.max_t", "null", "sweep.max_t=50000")
    end = sweep.max_t or stop.get(sweep.time_attr)
    if sweep.scheduler == "asha" and end is not None and end <= (sweep.grace_period or 0):
        what = "sweep.grace_period must be shorter than a trial (sweep.max_t or its stop criterion)"
        yield Problem(what, "sweep.grace_period", str(sweep.grace_period or 0), f"below {end:g}")
    if sweep.scheduler in POPULATIONS:
        yield from _find_population_problems(sweep, sweep.time_attr in stop, ends_by)


def _find_population_problems(sweep: SweepConfig, has_end: bool, ends_by: str) -> Iterator[Problem]:
    scheduler = f"sweep.scheduler={sweep.scheduler}"
    if sweep.perturbation_interval is None and not has_end:
        what = f"{scheduler} needs sweep.perturbation_interval, or {ends_by}"
        yield Problem(what, "sweep.perturbation_interval", "null", "sweep.perturbation_interval=20000")
    if sweep.search == "tpe":
        what = f"{scheduler} changes values during the trials, so sweep.search=tpe has nothing to propose"
        yield Problem(what, "sweep.search", "tpe", "random, grid")
    if sweep.max_concurrent_trials is not None:
        what = f"{scheduler} cannot limit concurrent trials: trials of a population take turns if resources are short"
        yield Problem(what, "sweep.max_concurrent_trials", str(sweep.max_concurrent_trials), "null")
