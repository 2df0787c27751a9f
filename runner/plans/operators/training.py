"""Operators that improve the policy."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from runner.config.errors import ConfigError, Problem
from runner.config.operators import (
    ApplyGradientsConfig,
    AverageGradientsConfig,
    TrainOneStepConfig,
    UpdateTargetNetworkConfig,
)
from runner.learners.gradients import average_gradients
from runner.plans.context import PlanContext
from runner.plans.item_state import item_from_state, item_to_state
from runner.plans.items import Experiences, Gradients, TrainResult
from runner.plans.operator import IteratorSource, Node, Operator
from runner.plans.prefetched_updates import UpdatesWithPrefetch
from runner.plans.recorded_batches import RecordedBatches
from runner.plans.updates import finish_update, naming_rows


class TrainOneStep(Operator):
    """Update the modules on each item, and send the new weights to env runners.

    An update takes many gradient steps: `num_epochs` passes over the minibatches of the item.
    """

    is_counted = True
    options: TrainOneStepConfig | None
    _prefetching: UpdatesWithPrefetch | None = None

    def __init__(self, context: PlanContext, **options: Any) -> None:
        super().__init__(context, **options)
        # A custom subclass with other options updates all modules.
        self._modules = None if self.options is None else self.options.modules
        context.check_module_ids("TrainOneStep", self._modules or ())

    def transform(self, item: Experiences | RecordedBatches) -> list[TrainResult]:
        """Update on an item, and return its metrics."""
        context = self.context
        num_env_steps = context.metrics.num_env_steps_sampled_lifetime
        context.callbacks.call("on_update_start")
        if isinstance(item, RecordedBatches):
            return [self._trained_on_recorded(item, num_env_steps)]
        item = self.selected(item)
        lags = context.lags_of(item.origins)  # before the update increments the number of the weights
        with naming_rows(item):
            update = context.learners.update(item.rollout, num_env_steps)
        return [finish_update(context, item, lags, update)]

    def selected(self, item: Experiences) -> Experiences:
        """Return the experiences of the modules to update."""
        return self.context.experiences_of(item, self._modules)

    def _trained_on_recorded(self, item: RecordedBatches, num_env_steps: int) -> TrainResult:
        result = item.train(self.context.learners, num_env_steps)
        self.context.broadcast_weights()
        self.context.callbacks.call("on_update_end", updates=result.updates)
        return result

    def __call__(self, items: Iterable[Any]) -> Node:
        """Return a node with the results; with `learners.prefetch` the next item is prepared during an update."""
        if not self.context.config.learners.prefetch:
            return super().__call__(items)
        source = items if isinstance(items, Node) else IteratorSource(self.context, items)
        self._prefetching = UpdatesWithPrefetch(self, source, self.selected)
        return self._prefetching

    def get_state(self) -> dict[str, Any]:
        """Return the state of the prefetched update, if there is one."""
        return {} if self._prefetching is None else self._prefetching.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`; without `learners.prefetch` the prefetched item is a normal one."""
        if self._prefetching is not None:
            self._prefetching.set_state(state)


class ComputeGradients(Operator):
    """Compute the gradient of the loss on each item without changing the parameters."""

    is_counted = True

    def transform(self, item: Experiences) -> list[Gradients]:
        """Return the gradients of all modules."""
        started = time.perf_counter()
        num_env_steps = self.context.metrics.num_env_steps_sampled_lifetime
        item = self.context.experiences_of(item)
        with naming_rows(item):
            gradients = self.context.learners.gradients(item.rollout, num_env_steps)
        timers = {"learner_update": time.perf_counter() - started}
        reported = gradients.connector_metrics
        return [Gradients(gradients, item.num_env_steps, item.origins, timers=timers, connector_metrics=reported)]


class AverageGradients(Operator):
    """Average a number of gradients, weighted by their numbers of rows."""

    options: AverageGradientsConfig

    def __init__(self, context: PlanContext, **options: Any) -> None:
        super().__init__(context, **options)
        self._parts: list[Gradients] = []

    def transform(self, item: Gradients) -> list[Gradients]:
        """Return the average once enough gradients have been collected."""
        self._parts.append(item)
        setting = self.options.num_gradients
        enough = self.context.env_runners.num_runners if isinstance(setting, str) else setting  # auto
        if len(self._parts) < enough:
            return []
        parts, self._parts = self._parts, []
        origins = tuple(origin for part in parts for origin in part.origins)
        num_env_steps = sum(part.num_env_steps for part in parts)
        return [Gradients(average_gradients([part.gradients for part in parts]), num_env_steps, origins)]

    def get_state(self) -> dict[str, Any]:
        """Return the gradients collected so far."""
        return {"parts": [item_to_state(part) for part in self._parts]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `get_state`."""
        self._parts = [item_from_state(part, self.context) for part in state["parts"]]


class ApplyGradients(Operator):
    """Take an optimiser step with each gradient, and send the new weights to env runners."""

    is_counted = True
    options: ApplyGradientsConfig

    def transform(self, item: Gradients) -> list[TrainResult]:
        """Take the step and return its result."""
        self.context.callbacks.call("on_update_start")
        started = time.perf_counter()
        num_env_steps = self.context.metrics.num_env_steps_sampled_lifetime
        lags = self.context.lags_of(item.origins)
        metrics = self.context.learners.apply(item.gradients, num_env_steps)
        applied = time.perf_counter()
        runners = {origin.runner for origin in item.origins}
        self.context.broadcast_weights(None if self.options.update_all or not runners else runners)
        timers = {"learner_update": applied - started, "synch_weights": time.perf_counter() - applied}
        self.context.callbacks.call("on_update_end", updates=[metrics])
        return [TrainResult([metrics], item.num_env_steps, lags=lags, timers=timers)]


class UpdateTargetNetwork(Operator):
    """Move target networks towards the online networks at regular intervals."""

    state = ("_num_updates", "_at_last")
    options: UpdateTargetNetworkConfig

    def __init__(self, context: PlanContext, **options: Any) -> None:
        super().__init__(context, **options)
        if not any(module.target_networks() for module in context.learners.modules.values()):
            classes = ", ".join(dict.fromkeys(one.__class__.__name__ for one in context.learners.modules.values()))
            what = "UpdateTargetNetwork needs target networks, but the modules of this run do not define any"
            raise ConfigError(
                [Problem(what, "algorithm.plan", classes, "a module with target_networks, such as double_q")]
            )
        self._num_updates = 0
        self._at_last = 0

    def transform(self, item: TrainResult) -> list[TrainResult]:
        """Update the targets if an update is due, and pass the item through."""
        self._num_updates += len(item.updates)
        count = self._count()
        if count - self._at_last >= self.options.every:
            self._at_last = count
            self.context.learners.update_targets(self.options.tau)
        return [item]

    def _count(self) -> int:
        metrics = self.context.metrics
        counts = {
            "env_steps": metrics.num_env_steps_sampled_lifetime,
            "trained_steps": metrics.num_env_steps_trained_lifetime,
            "updates": self._num_updates,
        }
        return counts[self.options.by]
