"""Run many passes over recorded data in one execution of Ray Data, and monitor its pipeline.

Ray Data takes seconds to start a pool of workers. The read tasks of many passes, each with shuffled files, therefore
form one data set. Ray Data only reports executions in this process, so data streamed to learners in other processes
cannot be monitored.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from runner.compat.ray_data import PipelineStatus, executor_of, status_of
from runner.offline.reading.recorded_source import ReadTables, RecordedSource, dataset_of_tasks
from runner.streams import random_stream

if TYPE_CHECKING:
    from ray.data import Dataset


ROWS_READ = "offline_data/num_rows_read_lifetime"
ROWS_PER_S = "offline_data/rows_read_per_s"
QUEUED_READ = "offline_data/queued_blocks_read"
QUEUED_PRELEARNER = "offline_data/queued_blocks_prelearner"
QUEUED_LEARNER = "offline_data/queued_blocks_learner"


class PipelineMonitor:
    """Counts the rows read by a data set's executions in this process.

    Args:
        dataset: train rows after the pre-learners.
        clock: returns the time in seconds.
    """

    def __init__(self, dataset: Dataset, clock: Callable[[], float] = time.perf_counter) -> None:
        from ray.data.dataset import MaterializedDataset

        self._dataset = dataset
        self._clock = clock
        self._is_materialised = isinstance(dataset, MaterializedDataset)
        # All rows of a materialised data set have been read already.
        self._num_rows_of_others = dataset.count() if self._is_materialised else 0
        self._executor: Callable[[], Any] = lambda: None  # a weak reference after the first execution
        self._status: PipelineStatus | None = None
        self._reported_rows = self._num_rows_of_others
        self._reported_at = clock()

    def look(self) -> None:
        """Read the progress of the newest execution. Call it at the end of each pass, as the next may be a new one."""
        executor = executor_of(self._dataset)
        if executor is None:
            return
        if self._executor() is not executor:
            self._num_rows_of_others, self._status = self._num_rows, None
            self._executor = weakref.ref(executor)
        self._status = status_of(executor) or self._status

    def progress(self) -> dict[str, float | int | None]:
        """Return the metrics under `offline_data/`, with the rate since the last call; None if unknown."""
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


# Approximate number of read tasks in one execution.
_NUM_TASKS = 2000
_PASS = b"runner.pass"  # metadata key of tables


def repeated_dataset(parts: Sequence[ReadTables], seed: int) -> Dataset:
    """Make a Ray data set with the tables of many passes over `parts`, which each pass shuffles."""
    num_passes = max(1, _NUM_TASKS // len(parts))

    def reads() -> Iterator[ReadTables]:
        for number in range(num_passes):
            for index in random_stream(seed, "offline_pass", number).permutation(len(parts)):
                yield partial(_tables_of_pass, parts[index], number)

    return dataset_of_tasks("Passes", reads, override_num_blocks=num_passes * len(parts))


def endless_dataset(read: ReadTables) -> Dataset:
    """Make a Ray data set with one endless read task, which repeats the tables of `read`."""
    return dataset_of_tasks("Stream", lambda: [partial(_all_passes, read)], override_num_blocks=1)


def _all_passes(read: ReadTables) -> Iterator[pa.Table]:
    for number in itertools.count():
        yield from _tables_of_pass(read, number)


def _tables_of_pass(part: ReadTables, number: int) -> Iterator[pa.Table]:
    for table in part():
        yield table.replace_schema_metadata({**(table.schema.metadata or {}), _PASS: str(number)})


def pass_number(batch: Any) -> int:
    """Return the number of the pass that read a batch of raw rows, or 0 without this metadata."""
    metadata = batch.schema.metadata if isinstance(batch, pa.Table) else None
    return int((metadata or {}).get(_PASS, 0))


def source_parts(source: RecordedSource) -> list[ReadTables]:
    """Split a source into parts for reading in any order: one per file of episodes, otherwise a single part."""
    if source.has_parts:
        return [part.tables for part in source.parts()]
    return [source.for_other_processes().episode_tables]


def parts_in_memory(dataset: Dataset, rows_per_part: int | None) -> list[ReadTables]:
    """Read a data set once into Ray's object store and split its blocks into parts.

    Args:
        dataset: the data set.
        rows_per_part: maximum rows of a part, or None for one part per block.
    """
    references = dataset.materialize().to_arrow_refs()
    if rows_per_part is None:
        return [partial(_tables_in_memory, reference, slice(None)) for reference in references]
    return [
        partial(_tables_in_memory, reference, slice(start, start + rows_per_part))
        for reference in references
        for start in range(0, _num_rows(reference), rows_per_part)
    ]


def _tables_in_memory(reference: Any, rows: slice) -> Iterator[pa.Table]:
    import ray

    table = ray.get(reference)
    yield table.slice(rows.start or 0, None if rows.stop is None else rows.stop - rows.start)


def _num_rows(reference: Any) -> int:
    import ray

    num_rows: int = ray.get(reference).num_rows
    return num_rows
