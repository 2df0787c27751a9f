"""Metrics of finished episodes: returns and lengths, returns by agent and module, and numbers from infos."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.config.info_metrics import PREFIX, InfoMetric
from runner.pipelines.custom_metrics import reduce_numbers
from runner.rows.finished_episodes import FinishedEpisodes

_NO_NUMBERS = np.zeros(0)
# Metric name with slashes -> number, or None while there is nothing to average.
Result = dict[str, float | int | None]


class RecentEpisodes:
    """The newest finished episodes, over which a run reports running means.

    Args:
        smoothing: number of episodes.
        of_infos: metrics computed from infos.

    Attributes:
        returns, lengths: return and length of each episode.
        returns_by_id: "agent" or "module" -> its id -> returns.
        infos: metric from infos -> numbers.
        info_keys: keys of the newest infos, for metrics that found no number.
    """

    def __init__(self, smoothing: int, of_infos: Sequence[InfoMetric]) -> None:
        self._smoothing = smoothing
        self.returns: deque[float] = deque(maxlen=smoothing)
        self.lengths: deque[int] = deque(maxlen=smoothing)
        self.returns_by_id: dict[str, dict[str, deque[float]]] = {"agent": {}, "module": {}}
        self.infos: dict[str, deque[float]] = {metric.name: deque(maxlen=smoothing) for metric in of_infos}
        self.info_keys: tuple[str, ...] = ()

    def add(self, finished: FinishedEpisodes) -> None:
        """Add episodes; each replaces the oldest one."""
        self.returns.extend(finished.returns.tolist())
        self.lengths.extend(finished.lengths.tolist())
        for kind, returns in returns_by_kind(finished):
            for id_, values in returns.items():
                recent_returns = self.returns_by_id[kind].setdefault(id_, deque(maxlen=self._smoothing))
                recent_returns.extend(values.tolist())
        self.info_keys = finished.info_keys or self.info_keys
        for name, recent_numbers in self.infos.items():
            numbers = finished.infos.get(name, _NO_NUMBERS)
            recent_numbers.extend(numbers[~np.isnan(numbers)].tolist())

    def get_state(self) -> dict[str, Any]:
        """Return the values as lists."""
        return {
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "infos": {name: list(numbers) for name, numbers in self.infos.items()},
            "own_returns": {
                kind: {id_: list(values) for id_, values in returns.items()}
                for kind, returns in self.returns_by_id.items()
            },
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `get_state`; of `infos`, only the metrics of this run."""
        for values, saved in ((self.returns, state["returns"]), (self.lengths, state["lengths"])):
            values.clear()
            values.extend(saved)
        for name in set(self.infos) & set(state["infos"]):
            self.infos[name] = deque(state["infos"][name], maxlen=self._smoothing)
        for kind, returns in state["own_returns"].items():
            self.returns_by_id[kind] = {id_: deque(values, maxlen=self._smoothing) for id_, values in returns.items()}


def returns_by_kind(finished: FinishedEpisodes) -> tuple[tuple[str, Mapping[str, npt.NDArray[np.float64]]], ...]:
    """Return ("agent", returns by agent id), ("module", returns by module id)."""
    return ("agent", finished.by_agent), ("module", finished.by_module)


def mean_returns_by_id(prefix: str, returns: Mapping[str, Mapping[str, Any]]) -> Result:
    """Compute `<prefix>/agent_episode_return_mean/<agent>` and `<prefix>/module_episode_return_mean/<module>`."""
    return {
        f"{prefix}/{kind}_episode_return_mean/{id_}": float(np.mean(values)) if len(values) else None
        for kind, by_id in returns.items()
        for id_, values in by_id.items()
    }


def reduced_infos(
    prefix: str, metrics: Sequence[InfoMetric], numbers: Mapping[str, Sequence[float] | npt.NDArray[np.float64]]
) -> Result:
    """Compute metrics from infos over the numbers of episodes; None without numbers."""
    return {
        f"{prefix}/{metric.name.removeprefix(PREFIX)}": _reduced(
            metric, np.asarray(numbers.get(metric.name, ()), np.float64)
        )
        for metric in metrics
    }


def _reduced(metric: InfoMetric, numbers: npt.NDArray[np.float64]) -> float | None:
    """Return the metric of episodes with these numbers, ignoring NaN; None without numbers."""
    known = numbers[~np.isnan(numbers)]
    if not len(known):
        return None
    if metric.bin is not None:
        low, high = metric.bin
        return float(np.mean((known >= low) & (known < high)))
    return reduce_numbers(known, metric.reduce)


def episode_metrics(
    prefix: str,
    returns: deque[float] | npt.NDArray[np.float64],
    lengths: deque[int] | npt.NDArray[np.int64],
    num_episodes: int,
    num_env_steps: int,
    num_outside: int,
) -> Result:
    """Compute `<prefix>/episode_return_mean` and similar metrics over these episodes; None without episodes."""
    result: Result = {}
    for name, values in (("episode_return", returns), ("episode_len", lengths)):
        array = np.asarray(values, np.float64)
        for statistic, function in (("mean", np.mean), ("min", np.min), ("max", np.max)):
            result[f"{prefix}/{name}_{statistic}"] = float(function(array)) if len(array) else None
    result[f"{prefix}/num_episodes"] = num_episodes
    result[f"{prefix}/num_env_steps_sampled"] = num_env_steps
    result[f"{prefix}/num_observations_outside_space"] = num_outside
    return result
