"""Private state of Ray Data: what an execution in this process has read, what waits, and how to end it.

A public `Dataset.stats()` of a running execution, and a way to shut one down, would replace it. Checked with Ray 2.60.
With versions that keep their state otherwise, such as Ray 2.53, `status_of` returns None and training continues.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

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


def executor_of(dataset: Any) -> Any | None:
    """Return the newest execution of a data set; None if there is none, or another version of Ray hides it."""
    return getattr(dataset, "_current_executor", None)


def status_of(executor: Any) -> PipelineStatus | None:
    """Return what an executor of Ray Data is doing; None if this Ray does not tell."""
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
    except Exception as error:  # whatever another version does, training continues
        _log.debug("Ray Data does not say what it is doing: %s: %s", type(error).__name__, error)
        return None


def end_execution(dataset: Any) -> None:
    """End what a data set executes in this process, and wait for it.

    Ray Data executes in threads; if one continues when Ray has been shut down, Ray ends the process.
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
    except Exception as error:  # as in `status_of`
        _log.debug("the execution did not end: %s: %s", type(error).__name__, error)
