"""What the pipeline of recorded data is doing: rows read, and blocks that wait before each stage.

Ray Data tells this of executions in this process only, and through objects that are private to it; they are touched
here and nowhere else, guarded. Of data that stream to learners in other processes nothing is known.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.data import Dataset

ROWS_READ = "offline_data/num_rows_read_lifetime"
ROWS_PER_S = "offline_data/rows_read_per_s"
QUEUED_READ = "offline_data/queued_blocks_read"
QUEUED_PRELEARNER = "offline_data/queued_blocks_prelearner"
QUEUED_LEARNER = "offline_data/queued_blocks_learner"

_PATIENCE_S = 10.0
_FETCHING_THREAD = "iter_threaded"  # the name that Ray Data gives to threads that fetch and format batches

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PipelineStatus:
    """An execution of Ray Data at one moment.

    Attributes:
        num_rows: train rows that have come out of the pre-learners.
        queued_read: blocks waiting before the stages in front of the pre-learners; None without such a stage.
        queued_prelearner: blocks waiting for a pre-learner; None where Ray lets pre-learners read by themselves.
        queued_learner: blocks waiting for the learner.
    """

    num_rows: int
    queued_read: int | None
    queued_prelearner: int | None
    queued_learner: int


def status_of(executor: Any) -> PipelineStatus | None:
    """Return what an executor of Ray Data is doing; None where this Ray does not say."""
    try:
        _, *before, (operator, state) = executor._topology.items()
        reads_by_itself = operator.name.startswith("Read")  # Ray has fused the stages: Read...->MapBatches(...)
        to_read = [executor for _, executor in before] or ([state] if reads_by_itself else [])
        return PipelineStatus(
            num_rows=int(operator.metrics.rows_task_outputs_generated),
            queued_read=sum(int(executor.total_enqueued_input_blocks()) for executor in to_read) if to_read else None,
            queued_prelearner=None if reads_by_itself else int(state.total_enqueued_input_blocks()),
            queued_learner=int(state.total_enqueued_output_blocks()),
        )
    except Exception as error:  # private to Ray: whatever another version does, training goes on
        _log.debug("Ray Data does not say what it is doing: %s: %s", type(error).__name__, error)
        return None


def end_execution(dataset: Any) -> None:
    """End what a data set executes in this process, and wait for it.

    Ray Data does so in threads of its own; if one goes on when Ray has been shut down, Ray ends the process.
    """
    try:
        executor = dataset._current_executor
        if executor is not None:
            executor.shutdown(force=False)  # waits for another thread's call
            executor.join(_PATIENCE_S)
        latest = time.monotonic() + _PATIENCE_S  # a reader that nobody closed keeps its threads
        for thread in threading.enumerate():
            if thread.name == _FETCHING_THREAD:
                thread.join(max(0.0, latest - time.monotonic()))
    except Exception as error:  # private to Ray, see `status_of`
        _log.debug("the execution did not end: %s: %s", type(error).__name__, error)


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
        executor = getattr(self._dataset, "_current_executor", None)
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
