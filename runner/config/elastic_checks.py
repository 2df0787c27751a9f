"""Checks of a number of env runners that is not fixed: its bounds, and runs in which it means nothing."""

from __future__ import annotations

from collections.abc import Iterator

from runner.config.composed import Composed
from runner.config.errors import Problem, nearest_match, show_value
from runner.config.operators import ENV_RUNNERS, AsyncRequestsConfig
from runner.config.plans import needs_of, read_plan, steps_of
from runner.config.schemas import DEFAULT_STRATEGY, PACK, SPREAD, ExperimentConfig

_KEY = "env_runners.num_env_runners"
_BOUNDS = ("min", "max")


def find_elastic_problems(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Yield what is wrong with `{min, max}` env runners."""
    bounds = config.env_runners.num_env_runners
    if not isinstance(bounds, dict):
        return
    where = next(filter(None, (composed.where(f"{_KEY}.{name}") for name in bounds)), composed.where(_KEY))
    got = show_value(bounds)
    for name in bounds:
        if name not in _BOUNDS:
            place = composed.where(f"{_KEY}.{name}") or where
            yield Problem(f"{_KEY}.{name} is not known", place, name, "min, max", nearest_match(name, _BOUNDS))
    missing = [name for name in _BOUNDS if name not in bounds]
    if missing:
        yield Problem(f"{_KEY} has no {' and no '.join(missing)}", where, got, "{min: 2, max: 16}, or an integer")
    elif bounds["min"] < 1:
        yield Problem(f"{_KEY}.min: a run needs an env runner", where, got, "min of 1 or more; 0 alone is this process")
    elif bounds["min"] > bounds["max"]:
        yield Problem(f"{_KEY}: min is above max", where, got, "min <= max")
    for what, allowed in _misfits(config):
        yield Problem(f"{_KEY} that is not fixed {what}", where, got, allowed)


def _misfits(config: ExperimentConfig) -> Iterator[tuple[str, str]]:
    """Yield why the number must be fixed, and what is allowed."""
    if ENV_RUNNERS not in needs_of(config):
        yield "has no effect: this run learns from recorded data alone", "0"
        return
    if config.env.is_external:
        yield (
            "is not for simulators that connect (env.port): they know addresses of the first env runners",
            "an integer",
        )
    if config.engine == "inline":
        yield "needs Ray, and engine=inline steps in this process", "an integer, or engine=ray"
    if config.env_runners.scheduling_strategy == PACK:
        allowed = f"an integer, or scheduling_strategy={DEFAULT_STRATEGY} or {SPREAD}"
        yield f"does not go with scheduling_strategy={PACK}, which reserves all places at the start", allowed
    for step in steps_of(read_plan(config.algorithm.plan)):
        if isinstance(step.config, AsyncRequestsConfig) and step.config.deterministic:
            what = f"gives other numbers in each run, and {step.key} says deterministic: true"
            yield what, "an integer, or deterministic: false"
