"""Operators on replay buffers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from runner.config.errors import Problem, RunFailure
from runner.config.operators import BufferConfig, MixInReplayConfig, ReplayConfig, UpdatePrioritiesConfig
from runner.config.plans.training_ratio import train_batch_size
from runner.plans.context import NotReady, PlanContext
from runner.plans.items import Experiences, TrainResult
from runner.plans.operator import Operator, Source
from runner.replay import BufferEmpty, PrioritizedReplayBuffer


class StoreToReplayBuffer(Operator):
    """Store experiences in a replay buffer, and pass them through."""

    options: BufferConfig

    def transform(self, item: Experiences) -> list[Experiences]:
        """Store the item."""
        self.context.replay_buffers[self.options.buffer].add(item.rollout)
        return [item]


class Replay(Source):
    """Sample experiences from a replay buffer."""

    state = ("_has_started",)
    options: ReplayConfig

    def __init__(self, context: PlanContext, **options: Any) -> None:
        super().__init__(context, **options)
        self._has_started = False
        setting = self.options.num_env_steps
        self._num_env_steps = train_batch_size(context.config) if isinstance(setting, str) else setting  # auto

    def poll(self) -> Experiences | NotReady:
        """Return experiences once the buffer holds enough."""
        if not self._has_started:
            buffer = self.context.replay_buffers[self.options.buffer]
            self._has_started = len(buffer) >= max(1, self.options.learning_starts) or buffer.is_full
            if not self._has_started:
                return NotReady.FOR_QUEUE
        try:
            return replayed(self.context, self.options.buffer, self._num_env_steps)
        except BufferEmpty:  # all of its processes have crashed
            return NotReady.FOR_QUEUE

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`; wait again for a buffer that starts empty."""
        super().set_state(state)
        self._has_started &= len(self.context.replay_buffers[self.options.buffer]) > 0


class MixInReplay(Operator):
    """Store experiences, then return them followed by an equal number of replayed steps.

    With `store: false` the buffer is not changed. Use this to mix experiences of two buffers.
    """

    state = ("_owed",)
    options: MixInReplayConfig

    def __init__(self, context: PlanContext, **options: Any) -> None:
        super().__init__(context, **options)
        self._owed = 0.0  # replayed items that are still due

    def transform(self, item: Experiences) -> list[Experiences]:
        """Return the item, followed by replayed ones if the buffer has any."""
        if self.options.store:
            self.context.replay_buffers[self.options.buffer].add(item.rollout)
        items = [item]
        self._owed += self.options.replay_proportion
        while self._owed >= 1:
            self._owed -= 1
            with suppress(BufferEmpty):  # nothing was stored yet, or all of its processes have crashed
                items.append(replayed(self.context, self.options.buffer, item.num_env_steps))
        return items


class UpdatePriorities(Operator):
    """Set the priorities of replayed rows to their errors in the update."""

    options: UpdatePrioritiesConfig

    def transform(self, item: TrainResult) -> list[TrainResult]:
        """Update the priorities.

        Raises:
            RunFailure: the loss does not return this column for each row.
        """
        buffer = self.context.replay_buffers[self.options.buffer]
        updated = {module_id for update in item.updates for module_id in update}
        for module_id, rows in item.replay_rows.get(self.options.buffer, {}).items():
            if module_id in updated and isinstance(buffer, PrioritizedReplayBuffer):
                buffer.update_priorities(module_id, rows, self._errors(item, module_id))
        return [item]

    def _errors(self, item: TrainResult, module_id: str) -> Any:
        given = item.rows.get(module_id, {})
        if self.options.column not in given:
            what = f"UpdatePriorities needs {self.options.column} per row, and the loss of module {module_id} lacks it"
            got = ", ".join(given) or "no values per row"
            raise RunFailure(Problem(what, "algorithm.plan", got, fix="name a column that the loss lists in `rows`"))
        return given[self.options.column]


def replayed(context: PlanContext, name: str, num_env_steps: int) -> Experiences:
    """Sample experiences from a buffer and return them as an item."""
    sampled = context.replay_buffers[name].sample(num_env_steps, context.metrics.num_env_steps_sampled_lifetime)
    rollout = context.standardised(sampled.rollout)
    return Experiences(rollout, replay_rows={name: sampled.rows})
