"""Numbers from the infos of finished episodes.

Dimension letters: N sub-environments, F finished episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from runner.config.errors import Problem, RunFailure, show_value
from runner.config.info_metrics import InfoMetric
from runner.env_runners.listeners import EpisodeListener, IntArray, VectorStep
from runner.rows.finished_episodes import FinishedEpisodes
from runner.rows.infos import Infos, info_of, keys_of, missing_values

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# Combines the value so far with a step's number; if one of them is NaN, the other one counts.
JOINED: Mapping[str, Callable[[Any, Any], Any]] = {
    "episode_sum": np.add,
    "episode_mean": np.add,
    "episode_min": np.minimum,
    "episode_max": np.maximum,
}


class EpisodeInfos(EpisodeListener):
    """Computes numbers from the infos of each finished episode: from the last info, or over all steps.

    Args:
        metrics: metrics to compute.
        num_envs: N.
    """

    name: ClassVar[str] = "infos"

    def __init__(self, metrics: Sequence[InfoMetric], num_envs: int) -> None:
        self._metrics, self._num_envs = metrics, num_envs
        self.begin()

    def begin(self) -> None:
        """Forget all episodes."""
        joined = [metric.name for metric in self._metrics if metric.at in JOINED]
        self._so_far = {name: np.full(self._num_envs, np.nan) for name in joined}
        self._num_steps = {name: np.zeros(self._num_envs) for name in joined}
        self._ended: dict[str, list[Floats]] = {metric.name: [] for metric in self._metrics}
        self._newest_at_end: Infos = {}

    def on_step(self, step: VectorStep) -> None:
        """Read the numbers of one vector step.

        Raises:
            RunFailure: an info contains a value that is not a number, or not a value for each sub-environment.
        """
        if step.aborted:
            self._forget(step.aborted)
        infos, is_step, is_done = step.infos, ~step.is_reset, step.is_done
        has_ended = np.count_nonzero(is_done) > 0
        if has_ended:
            self._newest_at_end = infos
        for metric in self._metrics:
            name, joined = metric.name, JOINED.get(metric.at)
            if joined is None:
                if has_ended:
                    of_ended = self._numbers(infos, metric, is_done)[is_done]
                    self._ended[name].append(self._of_group(of_ended, infos, metric, is_done))
                continue
            numbers = self._numbers(infos, metric, is_step)
            so_far, num_steps = self._so_far[name], self._num_steps[name]
            is_first, is_known = np.isnan(so_far), ~np.isnan(numbers)
            so_far[:] = np.where(is_first, numbers, np.where(is_known, joined(so_far, numbers), so_far))
            num_steps += is_known
            if has_ended:
                of_ended = so_far[is_done]
                if metric.at == "episode_mean":
                    of_ended = of_ended / np.maximum(num_steps[is_done], 1)
                self._ended[name].append(self._of_group(of_ended, infos, metric, is_done))
                so_far[is_done], num_steps[is_done] = np.nan, 0

    def _forget(self, envs: Sequence[int]) -> None:
        for name, so_far in self._so_far.items():
            so_far[list(envs)], self._num_steps[name][list(envs)] = np.nan, 0

    def complete(self, finished: FinishedEpisodes, counted: IntArray | None) -> FinishedEpisodes:
        """Add the numbers of the episodes, or NaN if no info of an episode has the key."""
        taken = {name: np.concatenate([np.zeros(0), *parts]) for name, parts in self._ended.items()}
        self._ended = {name: [] for name in self._ended}
        is_missing = any(len(numbers) and np.isnan(numbers).all() for numbers in taken.values())
        keys = tuple(keys_of(self._newest_at_end)) if is_missing else ()
        infos = taken if counted is None else {name: numbers[counted] for name, numbers in taken.items()}
        return replace(finished, infos=infos, info_keys=keys)

    def _numbers(self, infos: Infos, metric: InfoMetric, is_wanted: Bools) -> Floats:
        """Return the numbers (N,) in a step's infos, NaN for other sub-environments and missing numbers."""
        numbers = np.full(self._num_envs, np.nan)
        if isinstance(infos, Mapping):
            try:
                self._read_columns(infos, metric, is_wanted.copy(), numbers)
            except (LookupError, TypeError, ValueError) as error:
                raise missing_values("/".join(metric.path)) from error
        else:
            for env in np.flatnonzero(is_wanted).tolist():
                numbers[env] = number_in(infos[env], metric, f"sub-environment {env}")
        return numbers

    @staticmethod
    def _of_group(numbers: Floats, infos: Infos, metric: InfoMetric, is_done: Bools) -> Floats:
        """Return the numbers of episodes that have just ended, NaN for episodes that the metric does not cover."""
        if metric.group is None:
            return numbers
        ended = np.flatnonzero(is_done).tolist()
        return np.where([is_of_group(info_of(infos, env), metric) for env in ended], numbers, np.nan)

    @staticmethod
    def _read_columns(infos: Mapping[str, Any], metric: InfoMetric, is_valid: Bools, numbers: Floats) -> None:
        """Write the numbers from gymnasium's dict of arrays, in which `_key` is the mask of `key`."""
        values: Any = infos
        for key in metric.path:
            if not isinstance(values, Mapping) or key not in values:
                return
            is_valid &= np.asarray(values.get(f"_{key}", True), np.bool_)
            values = values[key]
        if isinstance(values, np.ndarray) and values.dtype.kind in "biuf" and values.ndim == 1:
            numbers[is_valid] = values[is_valid]
        else:
            for env in np.flatnonzero(is_valid).tolist():
                value = values if isinstance(values, Mapping) else values[env]
                numbers[env] = _number(value, metric, f"sub-environment {env}")

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the intermediate values of running episodes, as arrays."""
        return {
            "so_far": {name: values.copy() for name, values in self._so_far.items()},
            "num_steps": {name: values.copy() for name, values in self._num_steps.items()},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`; other metrics begin with the next step."""
        self.begin()
        for name in set(self._so_far) & set(state["so_far"]):
            self._so_far[name][:], self._num_steps[name][:] = state["so_far"][name], state["num_steps"][name]


def number_in(info: Mapping[str, Any], metric: InfoMetric, place: str) -> float:
    """Return the number for a metric in an info, or NaN if it is missing.

    Raises:
        RunFailure: the value is not a number.
    """
    value = _value_in(info, metric.path)
    return np.nan if value is None else _number(value, metric, place)


def is_of_group(info: Mapping[str, Any], metric: InfoMetric) -> bool:
    """Return whether the metric covers an episode with this last info."""
    if metric.group is None:
        return True
    path, wanted = metric.group
    value = _value_in(info, path)
    if isinstance(value, (np.generic, np.ndarray)):
        return value.size == 1 and bool(value.item() == wanted)
    return bool(value == wanted)


def _value_in(info: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = info
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _number(value: Any, metric: InfoMetric, place: str) -> float:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating)):
        what = f"metrics.{metric.name}: the value in the info of a step is not a number"
        problem = Problem(
            what,
            f"{place}, info {'/'.join(metric.path)}",
            show_value(value),
            "a number, or true or false",
        )
        raise RunFailure(problem)
    return float(value)
