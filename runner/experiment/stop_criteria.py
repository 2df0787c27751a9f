"""Stop criteria of a run. Imports nothing heavy, because `resume` checks them before it imports torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.config.metric_words import COUNTERS, words_of
from runner.config.schemas import ExperimentConfig

_OVER_EPISODES = re.compile(r"env_runners/(episode_(return|len)_(mean|min)|(agent|module)_episode_return_mean/.+)")
_MIN_CLIENTS = 3


@dataclass(frozen=True)
class MetCriterion:
    """An entry of `stop` that a result meets: the metric has reached its bound."""

    metric: str
    value: float
    bound: float

    def __str__(self) -> str:
        words = words_of(self.metric)
        if self.metric in COUNTERS:
            return f"reached {self.bound:,.10g} {words.removesuffix('s') if self.bound == 1 else words}"
        return f"{words} {self.value:g} >= {self.bound:g}"

    @property
    def key(self) -> str:
        """The key to override to continue the run; on the command line a metric has dots instead of slashes."""
        return f"stop.{self.metric.replace('/', '.')}"


def met_criteria(config: ExperimentConfig, result: Mapping[str, Any]) -> list[MetCriterion]:
    """Return the criteria that a result meets, in the order of `stop`; a single one ends the run.

    A criterion over finished training episodes needs at least the number of episodes in `fewest_episodes`. If
    three or more simulators are connected, more than half of them must have finished episodes recently.
    """
    num_episodes, fewest = result.get("num_episodes_lifetime") or 0, fewest_episodes(config)
    values = {metric: result.get(metric) for metric in config.stop}
    return [
        MetCriterion(metric, value, config.stop[metric])
        for metric, value in values.items()
        if value is not None
        and value >= config.stop[metric]
        and num_episodes >= fewest.get(metric, 0)
        and not (_is_over_episodes(metric, config) and _misses_clients(result))
    ]


def _misses_clients(result: Mapping[str, Any]) -> bool:
    """Return whether at least half of three or more connected simulators have not finished an episode recently."""
    num_clients = result.get("rllink/num_clients", 0) - result.get("rllink/num_clients_quarantined", 0)
    num_heard = result.get("rllink/num_clients_with_episodes", num_clients)
    return bool(num_clients >= _MIN_CLIENTS and 2 * num_heard <= num_clients)


def fewest_episodes(config: ExperimentConfig) -> dict[str, int]:
    """Return stop metric -> episodes that must finish before it counts, for metrics over the last training episodes.

    Otherwise the mean of a single lucky episode could end the run. A maximum counts immediately, because it is the
    value of one episode.
    """
    smoothing = config.env_runners.metrics_num_episodes_for_smoothing
    return {metric: smoothing for metric in config.stop if _is_over_episodes(metric, config)}


def _is_over_episodes(metric: str, config: ExperimentConfig) -> bool:
    if _OVER_EPISODES.fullmatch(metric):
        return True
    of_infos = [name for name in config.metrics if metric == name or metric.startswith(f"{name}/")]
    return any(_reduction(config.metrics[name]) != "max" for name in of_infos)


def _reduction(block: Any) -> Any:
    return block.get("reduce") if isinstance(block, Mapping) else None
