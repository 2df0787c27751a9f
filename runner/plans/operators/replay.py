"""Operators on replay buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.config.errors import Problem, RunFailure
from runner.config.operators import BufferConfig, MixInReplayConfig, ReplayConfig, UpdatePrioritiesConfig
from runner.config.plans import train_batch_size
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
    """Give experiences that are sampled from a replay buffer."""

    state = ("_has_started",)
    options: ReplayConfig

    def __init__(self, context: PlanContext, **options: Any) -> None:
        super().__init__(context, **options)
        self._has_started = False
        asked = self.options.num_env_steps
        self._num_env_steps = train_batch_size(context.config) if isinstance(asked, str) else asked  # auto

    def poll(self) -> Experiences | NotReady:
        """Return experiences once the buffer holds enough."""
        if not self._has_started:
            buffer = self.context.replay_buffers[self.options.buffer]
            self._has_started = len(buffer) >= max(1, self.options.learning_starts) or buffer.is_full
            if not self._has_started:
                return NotReady.FOR_QUEUE
        try:
            return replayed(self.context, self.options.buffer, self._num_env_steps)
        except BufferEmpty:  # all of its processes were lost
            return NotReady.FOR_QUEUE

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`; wait again for a buffer that starts empty."""
        super().set_state(state)
        self._has_started &= len(self.context.replay_buffers[self.options.buffer]) > 0


class MixInReplay(Operator):
    """Store experiences, then return them followed by an equal number of replayed steps.

    Without `store` the buffer stays as it is: experiences of one buffer with some of another one.
    """

    state = ("_owed",)
    options: MixInReplayConfig

    def __init__(self, context: PlanContext, **options: Any) -> None:
        super().__init__(context, **options)
        self._owed = 0.0  # replayed items that are still to be given

    def transform(self, item: Experiences) -> list[Experiences]:
        """Return the item and replayed ones."""
        if self.options.store:
            self.context.replay_buffers[self.options.buffer].add(item.rollout)
        items = [item]
        self._owed += self.options.replay_proportion
        while self._owed >= 1:
            self._owed -= 1
            items.append(replayed(self.context, self.options.buffer, item.num_env_steps))
        return items


class UpdatePriorities(Operator):
    """Make the errors of an update the priorities of the rows that it was made on."""

    options: UpdatePrioritiesConfig

    def transform(self, item: TrainResult) -> list[TrainResult]:
        """Update the priorities.

        Raises:
            RunFailure: the loss gives no such value for each row.
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
            what = f"UpdatePriorities finds no {self.options.column} of module {module_id}"
            got = ", ".join(given) or "nothing for each row"
            raise RunFailure(Problem(what, "algorithm.plan", got, "what the loss names in `rows`"))
        return given[self.options.column]


def replayed(context: PlanContext, name: str, num_env_steps: int) -> Experiences:
    """Return experiences that are sampled from a buffer, as an item."""
    sampled = context.replay_buffers[name].sample(num_env_steps, context.metrics.num_env_steps_sampled_lifetime)
    rollout = context.standardised(sampled.rollout)
    return Experiences(rollout, replay_rows={name: sampled.rows})
