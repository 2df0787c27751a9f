"""What the `sweep` block must agree with: the metrics of the experiment, and when it stops."""

from __future__ import annotations

from collections.abc import Iterator

from runner.config.compose import Composed
from runner.config.errors import Problem, show_value
from runner.config.schemas import ExperimentConfig


def find_sweep_problems(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Problems besides the names of metrics, where `config` is good field by field."""
    sweep = config.sweep
    metric, mode = sweep.metric or config.checkpoint.metric, sweep.mode or config.checkpoint.mode
    num_metrics = 1 if isinstance(metric, str) else len(metric)
    if num_metrics == 0 or (not isinstance(mode, str) and len(mode) != num_metrics):
        what = "sweep.mode has one entry for each of sweep.metric, or is one for all"
        yield Problem(what, composed.where("sweep.mode"), f"{show_value(metric)} and {show_value(mode)}")
    unknown = [] if isinstance(mode, str) else [own for own in mode if own not in ("max", "min")]
    if unknown:
        yield Problem(
            "sweep.mode is none of its choices", composed.where("sweep.mode"), show_value(unknown[0]), "max, min"
        )
    if sweep.search != "grid" and sweep.num_samples is None:
        what = f"sweep.search {sweep.search} draws without end: it needs sweep.num_samples"
        yield Problem(what, composed.where("sweep.num_samples"), "null", "sweep.num_samples=16")
    if sweep.search == "grid" and sweep.num_samples is not None:
        what = "sweep.num_samples is for sweep.search random and tpe: a grid tries every combination once"
        yield Problem(what, composed.where("sweep.num_samples"), str(sweep.num_samples), "null")
    if sweep.scheduler == "asha" and sweep.max_t is None and sweep.time_attr not in config.stop:
        what = f"sweep.scheduler asha needs sweep.max_t, or a stop.{sweep.time_attr.replace('/', '.')} to go by"
        yield Problem(what, composed.where("sweep.max_t"), "null", "sweep.max_t=50000")
