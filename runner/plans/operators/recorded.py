"""The operator that reads recorded data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.plans.context import PlanContext
from runner.plans.operator import Source
from runner.plans.recorded_batches import RecordedBatches


class ReadRecorded(Source):
    """Return the batches of recorded data, pass after pass; `offline` sets their number per iteration, or one pass."""

    state = ("_left", "_num_before")

    def __init__(self, context: PlanContext, **options: Any) -> None:
        super().__init__(context, **options)
        self._left = context.config.offline.dataset_num_iters_per_learner  # remaining updates of this iteration
        self._num_before: int | None = None  # number of batches trained on before the newest item
        self._is_reading = False

    def poll(self) -> RecordedBatches:
        """Return the remaining batches of an iteration, until all of them have been trained on."""
        data = self.context.recorded_data
        self._begin_reading()
        if self._left is not None and self._num_before is not None:  # subtract the updates since the newest item
            num_left = self._left - (data.num_batches - self._num_before)
            self._left = num_left or self.context.config.offline.dataset_num_iters_per_learner
        self._num_before = data.num_batches
        return RecordedBatches(data, self._left)

    def _begin_reading(self) -> None:
        """Start reading in the learners, unless they already read."""
        if not self._is_reading:
            self._is_reading = True
            data, learners = self.context.recorded_data, self.context.learners
            learners.read_from(lambda: data.readers(learners.num_learners))

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        super().set_state(state)
        if self._num_before is not None:  # one of its items may wait
            self._begin_reading()
