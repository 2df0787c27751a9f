"""What the pipeline of recorded data is doing: rows read, and blocks that wait before each stage.

Ray Data reports executions in this process only. Nothing is known of data that stream to learners in other processes.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from runner.compat.ray_data import PipelineStatus, executor_of, status_of

if TYPE_CHECKING:
    from ray.data import Dataset

ROWS_READ = "offline_data/num_rows_read_lifetime"
ROWS_PER_S = "offline_data/rows_read_per_s"
QUEUED_READ = "offline_data/queued_blocks_read"
QUEUED_PRELEARNER = "offline_data/queued_blocks_prelearner"
QUEUED_LEARNER = "offline_data/queued_blocks_learner"


class PipelineMonitor:
    """Counts what a data set's executions in this process have read.

    Args:
        dataset: train rows, behind the pre-learners.
        clock: seconds.
    """

    def __init__(self, dataset: Dataset, clock: Callable[[], float] = time.perf_counter) -> None:
        from ray.data.dataset import MaterializedDataset

        self._dataset = dataset
        self._clock = clock
        self._is_materialised = isinstance(dataset, MaterializedDataset)
        # Of a materialised data set, all rows were read when it was made.
        self._num_rows_of_others = dataset.count() if self._is_materialised else 0
        self._executor: Callable[[], Any] = _nothing
        self._status: PipelineStatus | None = None
        self._reported_rows = self._num_rows_of_others
        self._reported_at = clock()

    def look(self) -> None:
        """Take over what the newest execution has done; at the end of each pass, since the next may be another."""
        executor = executor_of(self._dataset)
        if executor is None:
            return
        if self._executor() is not executor:
            self._num_rows_of_others, self._status = self._num_rows, None
            self._executor = weakref.ref(executor)
        self._status = status_of(executor) or self._status

    def progress(self) -> dict[str, float | int | None]:
        """Return the metrics under `offline_data/`, the rate since the last call; None where nothing is known."""
        self.look()
        now, status, num_rows = self._clock(), self._status, self._num_rows
        rate = (num_rows - self._reported_rows) / max(now - self._reported_at, 1e-9)
        self._reported_rows, self._reported_at = num_rows, now
        is_known = self._is_materialised or status is not None
        return {
            ROWS_READ: num_rows if is_known else None,
            ROWS_PER_S: rate if is_known else None,
            QUEUED_READ: status.queued_read if status else None,
            QUEUED_PRELEARNER: status.queued_prelearner if status else None,
            QUEUED_LEARNER: status.queued_learner if status else None,
        }

    @property
    def _num_rows(self) -> int:
        return self._num_rows_of_others + (self._status.num_rows if self._status else 0)


def _nothing() -> None:
    """Stand for a reference to nothing."""
