"""Operators that improve the policy."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from runner.config.errors import ConfigError, Problem
from runner.config.operators import ApplyGradientsConfig, AverageGradientsConfig, UpdateTargetNetworkConfig
from runner.env_runners.loss_failure import with_rollout
from runner.learners.gradients import average_gradients
from runner.learners.loss_failure import LossNotFinite
from runner.plans.flow import Operator
from runner.plans.item_state import item_from_state, item_to_state
from runner.plans.items import Experiences, Gradients, TrainResult
from runner.plans.recorded_batches import RecordedBatches


class TrainOneStep(Operator):
    """Update the modules on each item, and give env runners the new weights."""

    is_counted = True

    def transform(self, item: Experiences | RecordedBatches) -> Iterator[TrainResult]:
        """Give what the update did."""
        self.resources.callbacks.call("on_update_start")
        result = self._trained_on_recorded(item) if isinstance(item, RecordedBatches) else self._trained(item)
        self.resources.callbacks.call("on_update_end", updates=result.updates)
        yield result

    def _trained_on_recorded(self, item: RecordedBatches) -> TrainResult:
        result = item.train(self.resources.learners, self.resources.metrics.num_env_steps_sampled_lifetime)
        self.resources.send_weights()
        return result

    def _trained(self, item: Experiences) -> TrainResult:
        started = time.perf_counter()
        lags = self.resources.lags_of(item.origins)
        update = self._update(item)
        updated = time.perf_counter()
        self.resources.send_weights()
        timers = {
            "learner_update": updated - started,
            "learner_connector": update.connector_s,
            "synch_weights": time.perf_counter() - updated,
        }
        if update.compile_s:
            timers["learner_compile"] = update.compile_s
        return TrainResult(
            [update.metrics],
            item.num_env_steps,
            rows=update.rows,
            replay_rows=item.replay_rows,
            lags=lags,
            timers=timers,
            connector_metrics=update.connector_metrics,
        )

    def _update(self, item: Experiences) -> Any:
        try:
            num_env_steps = self.resources.metrics.num_env_steps_sampled_lifetime
            return self.resources.learners.update(item.rollout, num_env_steps)
        except LossNotFinite as failure:
            raise with_rollout(failure, item.rollout) from failure


class ComputeGradients(Operator):
    """Compute the gradient of the loss on each item, and change nothing."""

    is_counted = True

    def transform(self, item: Experiences) -> Iterator[Gradients]:
        """Give the gradients of all modules."""
        started = time.perf_counter()
        num_env_steps = self.resources.metrics.num_env_steps_sampled_lifetime
        try:
            gradients = self.resources.learners.gradients(item.rollout, num_env_steps)
        except LossNotFinite as failure:
            raise with_rollout(failure, item.rollout) from failure
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
