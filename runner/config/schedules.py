"""Values that change with the number of env steps."""

from __future__ import annotations

import math
from itertools import pairwise

from runner.config.algorithms import Schedule


def check_schedule(name: str, schedule: Schedule, lowest: float, highest: float = math.inf) -> None:
    """Check a number or `[[env_steps, value], ...]` with rising steps.

    Raises:
        ValueError: the schedule has another form, or a value out of bounds.
    """
    try:
        points = schedule if isinstance(schedule, list) else [[0, schedule]]
        steps, values = zip(*points, strict=True)
        is_valid = list(steps) == sorted(set(steps)) and all(lowest <= value <= highest for value in values)
    except (TypeError, ValueError):
        is_valid = False
    if not is_valid:
        bounds = f">= {lowest:g}" if highest == math.inf else f"{lowest:g} to {highest:g}"
        raise ValueError(f"{name} must be {bounds}, or [[env steps, value], ...] of such values, got {schedule!r}")


def scheduled_value(schedule: Schedule, num_env_steps: int) -> float:
    """Return a number unchanged; interpolate `[[env_steps, value], ...]` linearly, constant after its end."""
    if isinstance(schedule, (int, float)):
        return float(schedule)
    for (step, value), (next_step, next_value) in pairwise(schedule):
        if num_env_steps < next_step:
            share = max(0.0, num_env_steps - step) / (next_step - step)
            return float(value + share * (next_value - value))
    return float(schedule[-1][1])
