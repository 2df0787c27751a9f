"""The few numbers of an iteration that a person watches, as labelled text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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

NUMBER_WIDTH = 10  # of the longest `number_text` of a number that is neither huge nor tiny: -0.0001234, -1.234e-05

# Name of a learner metric -> its label. Without any of them the display shows total_loss.
LOSS_LABELS = {
    "policy_loss": "policy",
    "vf_loss": "vf",
    "qf_loss": "qf",
    "entropy": "entropy",
    "mean_kl_loss": "kl",
}
_FALLBACK_LOSS = {"total_loss": "loss"}


class Losses:
    """Finds the losses to show in the first iteration that has some, and remembers their keys."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}  # label -> metric key

    def texts(self, metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return label and text of each, of the module that comes first."""
        if not self._keys:
            self._keys = _find_losses(metrics, LOSS_LABELS) or _find_losses(metrics, _FALLBACK_LOSS)
        return [(label, number_text(metrics.get(key))) for label, key in self._keys.items()]


def _find_losses(metrics: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, str]:
    module = None
    found = {}
    for key in metrics:
        prefix, _, name = key.rpartition("/")
        if name in labels and prefix.startswith("learners/") and module in (None, prefix):
            module = prefix
            found[name] = key
    return {label: found[name] for name, label in labels.items() if name in found}


def number_text(value: object) -> str:
    """Return four significant digits; "-" where there is no number yet."""
    number = finite_number(value)
    return "-" if number is None else f"{number:.4g}"


def count_text(value: object) -> str:
    """Return a whole number with thousands separated; "-" where there is none yet."""
    number = finite_number(value)
    return "-" if number is None else f"{number:,.0f}"


def queued_text(metrics: Mapping[str, Any]) -> str | None:
    """Return blocks that wait before each stage of the pipeline of recorded data, in its order; None if none is
    known."""
    texts = [count_text(metrics.get(name)) for name in QUEUED]
    return None if set(texts) == {"-"} else "/".join(texts)


def bytes_text(num_bytes: int) -> str:
    """Return four digits at most, in the unit that fits."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes} bytes"


def duration_text(seconds: float) -> str:
    """Return h:mm:ss, with days in front where there are some."""
    minutes, whole_seconds = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    text = f"{hours}:{minutes:02d}:{whole_seconds:02d}"
    return f"{days}d {text}" if days else text


def stop_texts(stop: Mapping[str, float], fewest_episodes: Mapping[str, int]) -> list[str]:
    """Return the stop criteria; the run ends when one of them is met.

    Args:
        stop: metric -> bound.
        fewest_episodes: metric -> episodes that it is computed over before it counts.
    """
    over = {name: f" over {num:,} episodes" for name, num in fewest_episodes.items()}
    texts = [f"{name} >= {float(value):,.10g}{over.get(name, '')}" for name, value in stop.items()]
    return texts or ["nothing: until interrupted"]
