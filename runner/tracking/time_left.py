"""How long a run still takes, from its stop criteria."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from runner.tracking.headline import duration_text
from runner.tracking.plain_values import finite_number

# Metrics that grow steadily, so that their rate tells when they reach a limit.
STEADY_METRICS = frozenset(
    {
        "training_iteration",
        "num_env_steps_sampled_lifetime",
        "num_env_steps_trained_lifetime",
        "num_episodes_lifetime",
        "time_total_s",
    }
)


class TimeLeft:
    """The run ends when the first metric of `stop` is at or above its value.

    Each steady metric is continued at its mean rate since `started_s`, when it stood at its value in
    `initial` (a resumed run's last metrics; 0 without). Where `stop` names others too, the run may end
    sooner than said.
    """

    def __init__(self, stop: Mapping[str, float], initial: Mapping[str, Any], started_s: float) -> None:
        self._limits = {name: float(value) for name, value in stop.items() if name in STEADY_METRICS}
        self._initial = {name: finite_number(initial.get(name)) or 0.0 for name in self._limits}
        self._started_s = started_s
        self._ends_at_s: float | None = None
        self._has_ended = False
        self.is_upper_bound = len(self._limits) < len(stop)
        self.fraction_done: float | None = None  # 0 to 1; None when nothing steady limits the run

    def update(self, metrics: Mapping[str, Any], now_s: float) -> None:
        """Take the metrics of the iteration that ended at `now_s` (same clock as `started_s`)."""
        if self._has_ended:
            return
        elapsed_s = now_s - self._started_s
        for name, limit in self._limits.items():
            value = finite_number(metrics.get(name))
            if value is None or limit <= 0:
                continue
            self.fraction_done = min(max(self.fraction_done or 0.0, value / limit), 1.0)
        all_left_s = [self._left_s(name, metrics, elapsed_s) for name in self._limits]
        left_s = min((left_s for left_s in all_left_s if left_s is not None), default=None)
        self._ends_at_s = None if left_s is None else now_s + left_s

    def end(self) -> None:
        """Note that a stop criterion is met, whether steady or not: no time is left."""
        self._has_ended = True
        self._ends_at_s = -math.inf
        self.is_upper_bound = False
        self.fraction_done = 1.0 if self._limits else None

    def seconds(self, now_s: float) -> float | None:
        """Return seconds left at `now_s`; None while nothing is known."""
        return None if self._ends_at_s is None else max(self._ends_at_s - now_s, 0.0)

    def text(self, now_s: float) -> str:
        """Return h:mm:ss, after "<=" when another criterion may end the run sooner; "-" when nothing is known."""
        seconds = self.seconds(now_s)
        if seconds is None:
            return "-"
        return f"{'<=' if self.is_upper_bound else ''}{duration_text(seconds)}"

    def _left_s(self, name: str, metrics: Mapping[str, Any], elapsed_s: float) -> float | None:
        value = finite_number(metrics.get(name))
        if value is None or value <= self._initial[name] or elapsed_s <= 0:
            return None
        return max(self._limits[name] - value, 0.0) * elapsed_s / (value - self._initial[name])
