"""The `sweep` block: how runs of one experiment are made from the values that overrides list."""

from __future__ import annotations

from dataclasses import dataclass

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
