"""Private state of Ray Data: rows read and blocks waiting in an execution of this process, and how to end it.

A public `Dataset.stats()` of a running execution, and a way to shut one down, would replace it. Checked with Ray 2.60.
With versions that store their state differently, such as Ray 2.53, `status_of` returns None and training continues.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

_PATIENCE_S = 10.0
_FETCHING_THREAD = "iter_threaded"  # name of Ray Data's threads that fetch and format batches

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PipelineStatus:
    """Status of an execution of Ray Data.

    Attributes:
        num_rows: train rows that the pre-learners have returned.
        queued_read: blocks waiting before the stages in front of the pre-learners, or None without such a stage.
        queued_prelearner: blocks waiting for a pre-learner, or None if pre-learners read the data themselves.
        queued_learner: blocks waiting for the learner.

    """

    num_rows: int
    queued_read: int | None
    queued_prelearner: int | None
    queued_learner: int


def executor_of(dataset: Any) -> Any | None:
    """Return the newest execution of a data set, or None if there is none or this version of Ray hides it."""
    return getattr(dataset, "_current_executor", None)


def status_of(executor: Any) -> PipelineStatus | None:
    """Return the status of an executor of Ray Data, or None if this version of Ray hides it."""
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
    except Exception as error:  # training must continue with any version of Ray
        _log.debug("cannot read the status of Ray Data: %s: %s", type(error).__name__, error)
        return None


def end_execution(dataset: Any) -> None:
    """End the executions of a data set in this process, and wait for the end.

    Ray Data executes in threads. If one is still running when Ray is shut down, Ray ends the process.
    """
    try:
        executor = dataset._current_executor
        if executor is not None:
            executor.shutdown(force=False)  # waits for another thread's call
            executor.join(_PATIENCE_S)
        latest = time.monotonic() + _PATIENCE_S  # the threads of an unclosed reader would run forever
        for thread in threading.enumerate():
            if thread.name == _FETCHING_THREAD:
                thread.join(max(0.0, latest - time.monotonic()))
    except Exception as error:  # as in `status_of`
        _log.debug("could not end the execution of Ray Data: %s: %s", type(error).__name__, error)
