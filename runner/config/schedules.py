"""Values that change with the number of env steps."""

from __future__ import annotations

import numpy as np

from runner.config.algorithms import Schedule


def scheduled_value(schedule: Schedule, num_env_steps: int) -> float:
    """Return a number as it is; interpolate `[[env_steps, value], ...]` linearly, constant after its end."""
    if isinstance(schedule, (int, float)):
        return float(schedule)
    steps, values = zip(*schedule, strict=True)
    return float(np.interp(num_env_steps, steps, values))
