"""The `sweep` block: how many runs of one experiment are made from the values that overrides list."""

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
        None, "what trials are judged by; of a list the first, all are in the Pareto table; null: checkpoint.metric"
    )
    mode: str | list[str] | None = option(
        None,
        "max or min: what is better, or a list with one for each metric; null: checkpoint.mode",
        choices=("max", "min"),
    )
    num_samples: int | None = option(
        None, "combinations that random and tpe try; with several seeds each is run with all of them", minimum=1
    )
    max_concurrent_trials: int | None = option(None, "trials at once; null: as many as there is room for", minimum=1)
    max_failures: int = option(0, "a trial that fails is tried again so often, from its last checkpoint", minimum=0)
    seed: int = option(0, "of the search itself: what is drawn and shuffled", minimum=0)
    time_attr: str = option("num_env_steps_sampled_lifetime", "the metric that schedulers count time in")
    max_t: float | None = option(None, "asha: when a trial has ended, in time_attr; null: stop.<time_attr>", above=0)
    grace_period: float | None = option(
        None, "asha: no trial is stopped before, in time_attr; null: max_t / reduction_factor^2", above=0
    )
    reduction_factor: float = option(4.0, "asha: one in so many goes on at each rung", above=1)
    perturbation_interval: float | None = option(
        None, "pbt, pb2: trials are compared so often, in time_attr; null: stop.<time_attr> / 10", above=0
    )
    quantile_fraction: float = option(
        0.25, "pbt, pb2: the worst of so large a part take over the state of one of the best", above=0, maximum=0.5
    )
    resample_probability: float = option(
        0.25, "pbt: how often a value is drawn anew instead of changed by a fifth", minimum=0, maximum=1
    )
    synch: bool = option(False, "pbt, pb2: compare when all trials have come as far, instead of each on its own")
    name: str | None = option(None, "name of the folder in outputs/EXPERIMENT/sweeps; null: made from the overrides")
    on_change: str = option(
        "refuse",
        "the folder holds a sweep with another search space: refuse, or extend it by the new combinations",
        choices=("refuse", "extend"),
    )
