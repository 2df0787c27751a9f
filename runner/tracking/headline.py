"""Text of a run for people: the headline numbers of an iteration, the time left, and the closing lines."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from runner.config.metric_words import words_of
from runner.config.metrics import DEFAULT_MODULE_ID
from runner.tracking.known_run import runner_command, ui_command
from runner.tracking.plain_values import finite_number

ITERATION = "training_iteration"
ENV_STEPS = "num_env_steps_sampled_lifetime"
GRADIENT_STEPS = "num_gradient_steps_lifetime"
TOTAL_S = "time_total_s"
RETURN = "env_runners/episode_return_mean"
EPISODE_LENGTH = "env_runners/episode_len_mean"
STEPS_PER_S = "env_steps_per_s"
EVALUATION_RETURN = "evaluation/env_runners/episode_return_mean"
ROWS_READ = "offline_data/num_rows_read_lifetime"
ROWS_PER_S = "offline_data/rows_read_per_s"
QUEUED = tuple(f"offline_data/queued_blocks_{stage}" for stage in ("read", "prelearner", "learner"))

NUMBER_WIDTH = 10  # longest `number_text` of common numbers: -0.0001234, -1.234e-05

# Learner metric -> label. If none of them exists, the display shows total_loss.
LOSS_LABELS = {
    "policy_loss": "policy",
    "vf_loss": "vf",
    "qf_loss": "qf",
    "entropy": "entropy",
    "mean_kl_loss": "kl",
}
_FALLBACK_LOSS = {"total_loss": "loss"}
_DEFAULT_MODULE = f"learners/{DEFAULT_MODULE_ID}"


class Losses:
    """Finds the losses to show in the first iteration that has any, and remembers their keys."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}  # label -> metric key

    def texts(self, metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return label and text of each loss of the default policy, or of the first module."""
        if not self._keys:
            self._keys = _find_losses(metrics, LOSS_LABELS) or _find_losses(metrics, _FALLBACK_LOSS)
        return [(label, number_text(metrics.get(key))) for label, key in self._keys.items()]


def _find_losses(metrics: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, str]:
    modules: dict[str, dict[str, str]] = {}
    for key in metrics:
        prefix, _, name = key.rpartition("/")
        if name in labels and prefix.startswith("learners/"):
            modules.setdefault(prefix, {})[name] = key
    found = modules.get(_DEFAULT_MODULE) or next(iter(modules.values()), {})
    return {label: found[name] for name, label in labels.items() if name in found}


def number_text(value: object) -> str:
    """Return the number with four significant digits, or "-" if there is none."""
    number = finite_number(value)
    return "-" if number is None else f"{number:.4g}"


def count_text(value: object) -> str:
    """Return the number as an integer with thousands separators, or "-" if there is none."""
    number = finite_number(value)
    return "-" if number is None else f"{number:,.0f}"


def queued_text(metrics: Mapping[str, Any]) -> str | None:
    """Return the number of waiting blocks before each stage of the recorded-data pipeline, or None if unknown."""
    texts = [count_text(metrics.get(name)) for name in QUEUED]
    return None if set(texts) == {"-"} else "/".join(texts)


def bytes_text(num_bytes: int) -> str:
    """Return a size in the largest suitable unit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes} bytes"


def duration_text(seconds: float) -> str:
    """Return h:mm:ss, preceded by days if there are any."""
    minutes, whole_seconds = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    text = f"{hours}:{minutes:02d}:{whole_seconds:02d}"
    return f"{days}d {text}" if days else text


def stop_texts(stop: Mapping[str, float], fewest_episodes: Mapping[str, int]) -> list[str]:
    """Return the stop criteria as conditions. The run ends when one of them is met.

    Args:
        stop: metric -> bound.
        fewest_episodes: metric -> number of episodes it is computed over before it counts.
    """
    over = {name: f" over {num:,} episodes" for name, num in fewest_episodes.items()}
    texts = [f"{words_of(name)} >= {float(value):,.10g}{over.get(name, '')}" for name, value in stop.items()]
    return texts or ["interrupted"]


_LARGE_RETURN = 100
_DOMINATES = 100  # ratio to the policy loss
_SMALLEST_POLICY_LOSS = 0.01


def reward_scale_hint(values: Mapping[str, float | None]) -> str | None:
    """Return advice about large rewards, or None if the value loss does not dominate.

    Args:
        values: metric -> last value.
    """
    last_return = values.get(RETURN)
    if last_return is None or not abs(last_return) >= _LARGE_RETURN:
        return None
    for name, policy_loss in values.items():
        module, _, metric = name.rpartition("/")
        vf_loss = values.get(f"{module}/vf_loss")
        if metric != "policy_loss" or policy_loss is None or vf_loss is None or math.isnan(vf_loss):
            continue
        if vf_loss >= _DOMINATES * max(abs(policy_loss), _SMALLEST_POLICY_LOSS):
            return (
                f"Returns are large ({number_text(last_return)}), and the value loss ({number_text(vf_loss)}) is much "
                f"larger than the policy loss ({number_text(policy_loss)}). If the policy does not improve, try "
                "connectors=normalize, which scales rewards and observations."
            )
    return None


# Metrics that grow steadily, so that their rate predicts when they reach a limit.
STEADY_METRICS = frozenset({ITERATION, ENV_STEPS, "num_env_steps_trained_lifetime", "num_episodes_lifetime", TOTAL_S})
_LONGEST_LEFT_S = 1e10  # 300 years; a run with a more distant limit, such as infinity, is endless


class TimeLeft:
    """Estimates the time until the first metric of `stop` reaches its bound.

    Each steady metric is extrapolated at its mean rate since `started_s`, starting from `initial`, the last metrics of
    a resumed run. If `stop` also names other metrics, the run may end sooner.
    """

    def __init__(self, stop: Mapping[str, float], initial: Mapping[str, Any], started_s: float) -> None:
        self._limits = {name: float(value) for name, value in stop.items() if name in STEADY_METRICS}
        self._initial = {name: finite_number(initial.get(name)) or 0.0 for name in self._limits}
        self._started_s = started_s
        self._ends_at_s: float | None = None
        self._has_ended = False
        self.is_upper_bound = len(self._limits) < len(stop)
        self.fraction_done: float | None = None  # 0 to 1; None if no steady metric limits the run

    def update(self, metrics: Mapping[str, Any], now_s: float) -> None:
        """Add the metrics of the iteration that ended at `now_s` (same clock as `started_s`)."""
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
        """Note that a stop criterion is met, so that no time is left."""
        self._has_ended = True
        self._ends_at_s = -math.inf
        self.is_upper_bound = False
        self.fraction_done = 1.0 if self._limits else None

    def seconds(self, now_s: float) -> float | None:
        """Return the seconds left at `now_s`, or None if unknown."""
        return None if self._ends_at_s is None else max(self._ends_at_s - now_s, 0.0)

    def text(self, now_s: float) -> str:
        """Return h:mm:ss, after "<=" if another criterion may end the run sooner, or "-" if unknown."""
        seconds = self.seconds(now_s)
        if seconds is None:
            return "-"
        return f"{'<=' if self.is_upper_bound else ''}{duration_text(seconds)}"

    def _left_s(self, name: str, metrics: Mapping[str, Any], elapsed_s: float) -> float | None:
        value = finite_number(metrics.get(name))
        if value is None or value <= self._initial[name] or elapsed_s <= 0:
            return None
        left_s = max(self._limits[name] - value, 0.0) * elapsed_s / (value - self._initial[name])
        return left_s if left_s <= _LONGEST_LEFT_S else None


Status = Literal["finished", "failed", "interrupted"]


@dataclass(frozen=True)
class RunSummary:
    """Summary of a run. Values that are None are left out.

    Attributes:
        time_s: duration of the entire run, without the time between an end and a resume.
        rows_read: rows of recorded data that this process has read.
        rows_per_s: rows read per second, or None if all rows were read at the start.
    """

    status: Status
    stop_reason: str
    iterations: int
    env_steps: int
    time_s: float
    run_dir: str | os.PathLike[str]
    rows_read: int | None = None
    rows_per_s: float | None = None
    last_return: float | None = None
    best_return: float | None = None
    evaluation_return: float | None = None
    checkpoint: str | os.PathLike[str] | None = None
    tracking_uri: str | None = None
    resume_command: str | None = None

    def lines(self) -> list[str]:
        """Return the lines for `Display.finish`."""
        steps_per_s = self.env_steps / self.time_s if self.time_s > 0 else None
        rows = {
            "iterations": count_text(self.iterations),
            "env steps": f"{count_text(self.env_steps)} ({count_text(steps_per_s)} per second)",
            "rows read": self._rows_text,
            "time": time_text(self.time_s),
            "return": self._return_text,
            "run dir": os.fspath(self.run_dir),
            "checkpoint": None if self.checkpoint is None else os.fspath(self.checkpoint),
            "MLflow": None if self.tracking_uri is None else ui_command(self.tracking_uri),
            "resume": self.resume_command,
        }
        shown = [f"  {label:<10}  {text}" for label, text in rows.items() if text is not None]
        return [f"{self.status}: {self.stop_reason}", *shown]

    @property
    def _rows_text(self) -> str | None:
        if self.rows_read is None:
            return None
        rate = "" if self.rows_per_s is None else f" ({count_text(self.rows_per_s)} per second)"
        return f"{count_text(self.rows_read)}{rate}"

    @property
    def _return_text(self) -> str | None:
        numbers = {"last": self.last_return, "best": self.best_return, "evaluation": self.evaluation_return}
        shown = [f"{label} {number_text(value)}" for label, value in numbers.items() if value is not None]
        return ", ".join(shown) or None


def resume_command(run_dir: str | os.PathLike[str]) -> str:
    """Return the command that resumes the run in `run_dir`."""
    return _command("resume", run_dir)


def report_command(run_dir: str | os.PathLike[str]) -> str:
    """Return the command that writes the report of the run in `run_dir`."""
    return _command("report", run_dir)


def _command(verb: str, run_dir: str | os.PathLike[str]) -> str:
    return f"{runner_command()} {verb} {shlex.quote(os.fspath(run_dir))}"


def time_text(seconds: float) -> str:
    """Return h:mm:ss, or a short time in seconds."""
    return f"{seconds:.1f} s" if seconds < 60 else duration_text(seconds)
