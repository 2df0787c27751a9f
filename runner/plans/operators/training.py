"""Operators that improve the policy."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runner.config.errors import ConfigError, Problem
from runner.config.operators import ApplyGradientsConfig, AverageGradientsConfig, UpdateTargetNetworkConfig
from runner.learners.gradients import average_gradients
from runner.learners.learner_group import UpdateResult
from runner.plans.flow import Operator
from runner.plans.item_state import item_from_state, item_to_state
from runner.plans.items import Experiences, Gradients, TrainResult
from runner.plans.recorded_batches import RecordedBatches
from runner.plans.update_ahead import UpdateAhead, naming_rows_of

if TYPE_CHECKING:
    from runner.plans.resources import Resources


class TrainOneStep(Operator):
    """Update the modules on each item, and give env runners the new weights.

    With `learners.prefetch` the learners update on an item while the next one is made and sent to them. Only then the
    result is given and env runners get the weights; the next update begins when the plan asks for more.
    """

    is_counted = True

    def __init__(self, resources: Resources, **options: Any) -> None:
        super().__init__(resources, **options)
        self._ahead: UpdateAhead | None = None  # the newest item's, with `learners.prefetch`

    def transform(self, item: Experiences | RecordedBatches) -> Iterator[TrainResult]:
        """Give what the update did; with `learners.prefetch`, what the one before did."""
        before, self._ahead = self._ahead, None
        if self.resources.config.learners.prefetch and isinstance(item, Experiences):
            self._ahead = UpdateAhead(self.resources, item, self._num_env_steps)
        if before is not None:  # also without `prefetch`, of a checkpoint with it
            yield self._ended(before)
        if self._ahead is None:
            self.resources.callbacks.call("on_update_start")
            yield self._trained_on_recorded(item) if isinstance(item, RecordedBatches) else self._trained(item)

    def flow(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield what the updates did."""
        yield from super().flow(self._begin_between(items))
        if self._ahead is not None:
            last, self._ahead = self._ahead, None
            yield self._ended(last)

    def _begin_between(self, items: Iterable[Any]) -> Iterator[Any]:
        """Let the update ahead begin before the next item is asked for."""
        if self._ahead is not None:
            self._ahead.begin()
        for item in items:
            yield item
            if self._ahead is not None:
                self._ahead.begin()

    @property
    def _num_env_steps(self) -> int:
        return self.resources.metrics.num_env_steps_sampled_lifetime

    def _trained_on_recorded(self, item: RecordedBatches) -> TrainResult:
        result = item.train(self.resources.learners, self._num_env_steps)
        self.resources.send_weights()
        self.resources.callbacks.call("on_update_end", updates=result.updates)
        return result

    def _trained(self, item: Experiences) -> TrainResult:
        lags = self.resources.lags_of(item.origins)
        with naming_rows_of(item):
            return self._result(item, lags, self.resources.learners.update(item.rollout, self._num_env_steps))

    def _ended(self, ahead: UpdateAhead) -> TrainResult:
        update = ahead.end()
        return self._result(ahead.item, ahead.lags, update)

    def _result(self, item: Experiences, lags: Sequence[tuple[int, int]], update: UpdateResult) -> TrainResult:
        updated = time.perf_counter()
        self.resources.send_weights()
        timers = {
            "learner_update": update.update_s,
            "learner_connector": update.connector_s,
            "synch_weights": time.perf_counter() - updated,
        }
        if update.compile_s:
            timers["learner_compile"] = update.compile_s
        self.resources.callbacks.call("on_update_end", updates=[update.metrics])
        return TrainResult(
            [update.metrics],
            item.num_env_steps,
            rows=update.rows,
            replay_rows=item.replay_rows,
            lags=lags,
            timers=timers,
            connector_metrics=update.connector_metrics,
        )

    def get_state(self) -> dict[str, Any]:
        """Return the update whose result has not been given."""
        return {} if self._ahead is None else self._ahead.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        self._ahead = UpdateAhead.from_state(state, self.resources)


class ComputeGradients(Operator):
    """Compute the gradient of the loss on each item, and change nothing."""

    is_counted = True

    def transform(self, item: Experiences) -> Iterator[Gradients]:
        """Give the gradients of all modules."""
        started = time.perf_counter()
        num_env_steps = self.resources.metrics.num_env_steps_sampled_lifetime
        with naming_rows_of(item):
            gradients = self.resources.learners.gradients(item.rollout, num_env_steps)
        timers = {"learner_update": time.perf_counter() - started}
        reported = gradients.connector_metrics
        yield Gradients(gradients, item.num_env_steps, item.origins, timers=timers, connector_metrics=reported)


class AverageGradients(Operator):
    """Average so many gradients, weighted by the rows that they were computed on."""

    options: AverageGradientsConfig

    def __init__(self, resources: Any, **options: Any) -> None:
        super().__init__(resources, **options)
        self._parts: list[Gradients] = []

    def transform(self, item: Gradients) -> Iterator[Gradients]:
        """Give the average once there are enough."""
        self._parts.append(item)
        asked = self.options.num_gradients
        enough = self.resources.env_runners.num_runners if isinstance(asked, str) else asked  # auto
        if len(self._parts) >= enough:
            parts, self._parts = self._parts, []
            origins = tuple(origin for part in parts for origin in part.origins)
            num_env_steps = sum(part.num_env_steps for part in parts)
            yield Gradients(average_gradients([part.gradients for part in parts]), num_env_steps, origins)

    def get_state(self) -> dict[str, Any]:
        """Return the gradients so far."""
        return {"parts": [item_to_state(part) for part in self._parts]} if self._parts else {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        self._parts = [item_from_state(part, self.resources) for part in state["parts"]]  # type: ignore[misc]


class ApplyGradients(Operator):
    """Take an optimiser step with each gradient, and give env runners the new weights."""

    is_counted = True
    options: ApplyGradientsConfig

    def transform(self, item: Gradients) -> Iterator[TrainResult]:
        """Give what the step did."""
        self.resources.callbacks.call("on_update_start")
        started = time.perf_counter()
        num_env_steps = self.resources.metrics.num_env_steps_sampled_lifetime
        lags = self.resources.lags_of(item.origins)
        metrics = self.resources.learners.apply(item.gradients, num_env_steps)
        applied = time.perf_counter()
        runners = {origin.runner for origin in item.origins}
        self.resources.send_weights(None if self.options.update_all or not runners else runners)
        timers = {"learner_update": applied - started, "synch_weights": time.perf_counter() - applied}
        self.resources.callbacks.call("on_update_end", updates=[metrics])
        yield TrainResult([metrics], item.num_env_steps, lags=lags, timers=timers)


class UpdateTargetNetwork(Operator):
    """Move target networks towards the networks that they follow, every so often."""

    options: UpdateTargetNetworkConfig

    def __init__(self, resources: Any, **options: Any) -> None:
        super().__init__(resources, **options)
        if not any(module.target_networks() for module in resources.learners.modules.values()):
            classes = ", ".join(dict.fromkeys(one.__class__.__name__ for one in resources.learners.modules.values()))
            what = "UpdateTargetNetwork finds no target network in this run's modules"
            raise ConfigError(
                [Problem(what, "algorithm.plan", classes, "a module with target_networks, such as double_q")]
            )
        self._num_updates = 0
        self._at_last = 0

    def transform(self, item: TrainResult) -> Iterator[TrainResult]:
        """Give the item on, after an update of the targets if one is due."""
        self._num_updates += len(item.updates)
        count = self._count()
        if count - self._at_last >= self.options.every:
            self._at_last = count
            self.resources.learners.update_targets(self.options.tau)
        yield item

    def _count(self) -> int:
        metrics = self.resources.metrics
        counts = {
            "env_steps": metrics.num_env_steps_sampled_lifetime,
            "trained_steps": metrics.num_env_steps_trained_lifetime,
            "updates": self._num_updates,
        }
        return counts[self.options.by]

    def get_state(self) -> dict[str, Any]:
        """Return the counts."""
        return {"num_updates": self._num_updates, "at_last": self._at_last}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        self._num_updates, self._at_last = int(state["num_updates"]), int(state["at_last"])
