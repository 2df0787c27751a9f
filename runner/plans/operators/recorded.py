"""The operator that reads recorded data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner.plans.flow import Source
from runner.plans.recorded_batches import RecordedBatches
from runner.plans.resources import Resources


class ReadRecorded(Source):
    """Give the batches of recorded data, pass after pass; an iteration has as many as `offline` says, or a pass."""

    def __init__(self, resources: Resources, **options: Any) -> None:
        super().__init__(resources, **options)
        self._left = resources.config.offline.dataset_num_iters_per_learner  # updates of this iteration
        self._num_before: int | None = None  # batches that were learned from before the newest item

    def make_items(self) -> Iterator[RecordedBatches]:
        """Yield what is left of an iteration until all of it has been trained on."""
        data, learners = self.resources.recorded_data, self.resources.learners
        learners.read_from(lambda: data.readers(learners.num_learners))
        while True:
            self._left, self._num_before = self._num_left(), data.num_batches
            yield RecordedBatches(data, self._left)

    def _num_left(self) -> int | None:
        """Return the updates that are left after what was done since the newest item."""
        if self._left is None or self._num_before is None:
            return self._left
        num_done = self.resources.recorded_data.num_batches - self._num_before
        return self._left - num_done or self.resources.config.offline.dataset_num_iters_per_learner

    def get_state(self) -> dict[str, Any]:
        """Return the updates that the iteration has left."""
        return {"left": self._num_left()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        self._left, self._num_before = state["left"], None
