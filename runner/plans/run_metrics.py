"""Counters, timers and running means of a run, and the flat result of each iteration."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.config.declared_metrics import Reports
from runner.config.errors import list_names, nearest_match
from runner.config.info_metrics import InfoMetric
from runner.config.metrics import IDLE_S, LEARNER_IDLE_S, WEIGHTS_LAG_MAX, WEIGHTS_LAG_MEAN
from runner.parts import Part
from runner.pipelines.custom_metrics import CustomMetrics, ReducedMetrics, ReducedValue, merge_metrics
from runner.plans.episode_metrics import RecentEpisodes, Result, episode_metrics, mean_returns_by_id, reduced_infos
from runner.plans.items import Item, TrainResult
from runner.plans.system_usage import SystemUsage
from runner.rows.finished_episodes import FinishedEpisodes, OutsideObservations

_NUM_GRADIENT_STEPS = "num_minibatch_updates"
_COUNTERS = (
    "training_iteration",
    "num_env_steps_sampled_lifetime",
    "num_env_steps_trained_lifetime",
    "num_gradient_steps_lifetime",
    "num_episodes_lifetime",
)


@dataclass
class Clock:
    """Seconds that a block took, set when the block ends."""

    seconds: float = 0.0


class RunMetrics(Part):
    """Counters, timers and running means of a run so far, counted from the items of its operators.

    Args:
        smoothing: number of finished episodes in the running means.
        samples_episodes: whether the run samples episodes; no returns are reported for recorded data.
        warn: prints a line, for example about the first observation outside its space.
        of_infos: metrics computed from infos.
        env_name: name of the environment, for these lines.
        has_gpus: whether to report the use of GPUs.

    Attributes:
        of_infos: metrics computed from infos.
        counts_recorded: whether recorded env steps count as sampled, because the plan samples none.
        reports_lag: whether samples may come from older weights, because the plan samples asynchronously.
        is_partial_iteration: whether a checkpoint was taken within the current iteration.
        outcomes: name of a part -> values that the episodes of this iteration report to it.
    """

    name = "metrics"
    outcomes: dict[str, list[Any]]

    counts_recorded = True
    reports_lag = False
    is_partial_iteration = False
    _partial_s = 0.0  # seconds that an interrupted iteration took before the checkpoint

    def __init__(
        self,
        smoothing: int,
        samples_episodes: bool = True,
        warn: Callable[[str], None] = lambda text: None,
        of_infos: Sequence[InfoMetric] = (),
        env_name: str = "",
        has_gpus: bool = False,
    ) -> None:
        self._usage = SystemUsage(has_gpus)
        self._samples_episodes = samples_episodes
        self._warn, self._env_name = warn, env_name
        self._has_warned = self._has_looked_at_infos = False
        self.of_infos = of_infos
        self._recent = RecentEpisodes(smoothing, of_infos)
        self._reported: ReducedMetrics = {}
        self._reductions: dict[str, str] = {}  # metric of an operator -> its reduction
        self.training_iteration = 0
        self.num_env_steps_sampled_lifetime = 0
        self.num_env_steps_trained_lifetime = 0
        self.num_gradient_steps_lifetime = 0
        self.num_episodes_lifetime = 0
        self.time_total_s = 0.0
        self.begin_iteration()

    def begin_iteration(self) -> None:
        """Start counting the time and steps of an iteration; a partial iteration continues."""
        if self.is_partial_iteration:
            self.is_partial_iteration, self._started = False, time.perf_counter() - self._partial_s
            return
        self._started = time.perf_counter()
        self._timers: defaultdict[str, float] = defaultdict(float)
        self._updates: list[Mapping[str, Mapping[str, float]]] = []
        self._lags: list[tuple[int, int]] = []
        self._lags_when_taken: list[tuple[int, int]] = []
        self._idle_s = 0.0
        self.num_env_steps_sampled = 0
        self._num_episodes = 0
        self._num_outside = 0
        self.outcomes = {}
        self._reset_reported({name: reduced.reduction for name, reduced in self._reported.items()})

    def _reset_reported(self, reductions: Mapping[str, str]) -> None:
        """Reset the reported metrics, in the dict that operators share."""
        self._reported.clear()
        self._reported |= {name: ReducedValue(one) for name, one in {**reductions, **self._reductions}.items()}

    def reporter(self, owner: str, where: str, reports: Reports, prefix: str) -> CustomMetrics:
        """Return the object that an operator reports its metrics to; they appear in the result of each iteration.

        Args:
            owner: class name of the operator.
            where: its location in the configuration, for messages.
            reports: its declared metrics.
            prefix: prefix of its metrics' names in the run.
        """
        self._reductions |= {f"{prefix}{name}": reduction for name, (reduction, _) in reports.items()}
        self._reported |= {f"{prefix}{name}": ReducedValue(reduction) for name, (reduction, _) in reports.items()}
        return CustomMetrics(owner, where, reports, self._reported, prefix)

    @property
    def reported(self) -> Result:
        """Return metric -> value so far in this iteration, from connectors, callbacks of env runners and operators."""
        return {name: reduced.result for name, reduced in self._reported.items()}

    def stop_midway(self) -> None:
        """Interrupt the iteration; the next `begin_iteration` continues it."""
        self.is_partial_iteration, self._partial_s = True, time.perf_counter() - self._started

    @contextmanager
    def clocked(self) -> Iterator[Clock]:
        """Add the seconds of the block to the run's time, but not to an iteration's time."""
        clock, started = Clock(), time.perf_counter()
        yield clock
        clock.seconds = time.perf_counter() - started
        self.time_total_s += clock.seconds

    def count(self, item: Item) -> None:
        """Count the metrics of an item: seconds, sampled env steps and episodes, updates."""
        for name, seconds in item.timers.items():
            self.add_seconds(name, seconds)
        merge_metrics(self._reported, item.connector_metrics)
        for sample in item.samples:
            self._idle_s += sample.idle_s
            self._add_sampled(sample.rollout.num_env_steps)
            self._add_episodes(sample.finished)
            merge_metrics(self._reported, sample.connector_metrics)
        if isinstance(item, TrainResult):
            if self.counts_recorded:
                self._add_sampled(item.num_env_steps_read)
            self.num_env_steps_trained_lifetime += item.num_env_steps_trained
            self.num_gradient_steps_lifetime += sum(map(_num_gradient_steps, item.updates))
            self._updates.extend(item.updates)
            self._lags.extend(item.lags)

    def add_lag_when_taken(self, lag: int, num_env_steps: int) -> None:
        """Count the lag of a sample's weights, in updates, when a plan takes the sample.

        This lag is reported for iterations that do not train on a sample of known lag, for example on replayed ones.
        """
        self._lags_when_taken.append((lag, num_env_steps))

    def add_seconds(self, name: str, seconds: float) -> None:
        """Add to `timers/<name>` of this iteration."""
        self._timers[name] += seconds

    def _add_sampled(self, num_env_steps: int) -> None:
        self.num_env_steps_sampled += num_env_steps
        self.num_env_steps_sampled_lifetime += num_env_steps

    def _add_episodes(self, finished: FinishedEpisodes) -> None:
        """Count finished episodes, and add them to the running means."""
        self._num_outside += finished.outside.count
        self.warn_of(finished.outside)
        if not len(finished.returns) and not finished.by_agent:
            return
        self._recent.add(finished)
        for name, outcomes in finished.outcomes.items():
            self.outcomes.setdefault(name, []).extend(outcomes)
        self._num_episodes += len(finished.returns)
        self.num_episodes_lifetime += len(finished.returns)

    def warn_of(self, outside: OutsideObservations) -> None:
        """Warn of the first observation outside its space, once per run."""
        if outside.first is not None and not self._has_warned:
            self._has_warned = True
            problem = outside.first
            self._warn(
                f"{self._env_name}: {problem.what}: {problem.got}, expected {problem.expected} ({problem.where}); "
                "the run continues because of env.validate_observations=warn; see num_observations_outside_space"
            )

    def warn_of_missing_infos(
        self, numbers: Mapping[str, Sequence[float] | npt.NDArray[np.float64]], keys: Sequence[str]
    ) -> None:
        """Warn once, after the first finished episodes, of metrics whose key is missing in all infos.

        Args:
            numbers: metric -> numbers of finished episodes.
            keys: keys of the newest infos.
        """
        if self._has_looked_at_infos or not numbers:
            return
        self._has_looked_at_infos = True
        for metric in self.of_infos:
            if not metric.is_part and np.isnan(np.asarray(numbers.get(metric.name, ()), np.float64)).all():
                key = "/".join(metric.path)
                near = nearest_match(key, keys)
                texts = (
                    f"{metric.name}: no info of the finished episodes has {key}",
                    f"it has {list_names(keys, key)}" if keys else "",
                    f"nearest: {near}" if near else "",
                )
                self._warn("; ".join(filter(None, texts)))

    def finish_iteration(self, more: Mapping[str, float | int | None] = MappingProxyType({})) -> Result:
        """End this iteration and return its result, with the metrics of `more`."""
        seconds, num_sampled = time.perf_counter() - self._started, self.num_env_steps_sampled_lifetime
        recent = self._recent
        self.training_iteration += 1
        self.time_total_s += seconds
        if self.num_episodes_lifetime:
            self.warn_of_missing_infos(recent.infos, recent.info_keys)
        result: Result = {
            "training_iteration": self.training_iteration,
            "num_env_steps_sampled": self.num_env_steps_sampled,
            "num_env_steps_sampled_lifetime": num_sampled,
            "num_env_steps_trained_lifetime": self.num_env_steps_trained_lifetime,
            "num_gradient_steps_lifetime": self.num_gradient_steps_lifetime,
            "training_intensity": self.num_env_steps_trained_lifetime / num_sampled if num_sampled else None,
            "num_episodes_lifetime": self.num_episodes_lifetime,
            "time_this_iter_s": seconds,
            "time_total_s": self.time_total_s,
            "env_steps_per_s": self.num_env_steps_sampled / seconds,
        }
        if self._samples_episodes:
            result |= episode_metrics(
                "env_runners",
                recent.returns,
                recent.lengths,
                self._num_episodes,
                self.num_env_steps_sampled,
                self._num_outside,
            )
            result |= reduced_infos("env_runners", self.of_infos, recent.infos)
        result |= mean_returns_by_id("env_runners", recent.returns_by_id)
        if self.reports_lag:
            result |= _lag_metrics(self._lags or self._lags_when_taken)
            result |= {IDLE_S: self._idle_s, LEARNER_IDLE_S: max(0.0, seconds - self._timers["learner_update"])}
        result |= _means_by_module(self._updates)
        result |= self.reported
        result |= {f"timers/{name}": value for name, value in self._timers.items()}
        result |= self._usage.metrics()
        return result | dict(more)

    def get_state(self) -> dict[str, Any]:
        """Return counters and running means as plain values."""
        return {
            **{name: getattr(self, name) for name in _COUNTERS},
            "time_total_s": self.time_total_s,
            "reported": {name: reduced.reduction for name, reduced in self._reported.items()},
            **self._recent.get_state(),
            **({"iteration": self._state_of_iteration()} if self.is_partial_iteration else {}),
        }

    def _state_of_iteration(self) -> dict[str, Any]:
        return {
            "seconds": self._partial_s,
            "timers": dict(self._timers),
            "updates": list(self._updates),
            "lags": [list(lag) for lag in self._lags],
            "lags_when_taken": [list(lag) for lag in self._lags_when_taken],
            "idle_s": self._idle_s,
            "outcomes": {name: [list(one) for one in outcomes] for name, outcomes in self.outcomes.items()},
            "counts": [self.num_env_steps_sampled, self._num_episodes, self._num_outside],
            "reported": {
                name: [one.reduction, one.value, one.weight, list(one.values)] for name, one in self._reported.items()
            },
        }

    def _set_state_of_iteration(self, state: Mapping[str, Any]) -> None:
        self.is_partial_iteration, self._partial_s = True, float(state["seconds"])
        self._timers = defaultdict(float, state["timers"])
        self._updates, self._idle_s = list(state["updates"]), float(state["idle_s"])
        self._lags, self._lags_when_taken = (
            [(int(lag), int(num_env_steps)) for lag, num_env_steps in state[name]]
            for name in ("lags", "lags_when_taken")
        )
        self.outcomes = {name: list(outcomes) for name, outcomes in state["outcomes"].items()}
        self.num_env_steps_sampled, self._num_episodes, self._num_outside = map(int, state["counts"])
        for name, reduced in state["reported"].items():
            if reduced[0] == self._reported[name].reduction:
                self._reported[name].merge(ReducedValue(*reduced))

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `get_state`."""
        self._recent.set_state(state)
        self._reset_reported(state["reported"])
        for name in _COUNTERS:
            setattr(self, name, int(state[name]))
        self.time_total_s = float(state["time_total_s"])
        if "iteration" in state:
            self._set_state_of_iteration(state["iteration"])


def _num_gradient_steps(update: Mapping[str, Mapping[str, float]]) -> int:
    """Return the gradient steps of an update: the maximum over modules, since modules step in parallel."""
    return int(max((metrics.get(_NUM_GRADIENT_STEPS, 0) for metrics in update.values()), default=0))


def _lag_metrics(lags: Sequence[tuple[int, int]]) -> Result:
    """Compute the mean, weighted by env steps, and the maximum of lags; None if there are none."""
    if not lags:
        return {WEIGHTS_LAG_MEAN: None, WEIGHTS_LAG_MAX: None}
    updates, num_env_steps = np.array(lags).T
    return {
        WEIGHTS_LAG_MEAN: float(np.average(updates, weights=num_env_steps)),
        WEIGHTS_LAG_MAX: int(updates.max()),
    }


def _means_by_module(updates: Sequence[Mapping[str, Mapping[str, float]]]) -> Result:
    """Compute `learners/<module>/<metric>`: the mean over the updates that report it, or the sum for counts."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for update in updates:
        for module_id, metrics in update.items():
            for name, value in metrics.items():
                values[f"learners/{module_id}/{name}"].append(value)
    return {
        name: sum(reported) if name.endswith(f"/{_NUM_GRADIENT_STEPS}") else sum(reported) / len(reported)
        for name, reported in values.items()
    }
