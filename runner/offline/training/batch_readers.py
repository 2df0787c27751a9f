"""Train batches out of train rows: of a Ray data set, or of a function that samples them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runner.config.errors import ConfigError, Problem
from runner.episodes import nested
from runner.learners.train_batch import TrainBatch
from runner.offline.training.prelearner import flat_columns, nested_columns, without_metrics
from runner.offline.training.workers import native_messages_to_log, pipeline_errors
from runner.pipelines.connector import DEFAULT_MODULE_ID, LOSS_MASK

if TYPE_CHECKING:
    from ray.data import DataIterator, Dataset

_PREFETCHED_BATCHES = 4

Rows = Mapping[str, Any]


def passes(
    rows: Dataset | DataIterator, rows_per_batch: int, options: Mapping[str, Any]
) -> Generator[tuple[Rows, bool], None, None]:
    """Yield batches of train rows without end, and whether each is the last one of a pass.

    Args:
        rows: train rows.
        rows_per_batch: of one update.
        options: of `iter_batches`.

    Raises:
        ConfigError: there is no batch in a pass.
    """
    options = {"prefetch_batches": _PREFETCHED_BATCHES, **options}
    while True:
        batches = iter(rows.iter_batches(batch_size=rows_per_batch, batch_format="numpy", **options))
        with pipeline_errors(), native_messages_to_log():
            current: Rows | None = next(batches, None)
        if current is None:
            what = f"the recorded data have no train batch of {rows_per_batch} rows for each learner"
            expected = (
                "more data, a smaller algorithm.train_batch_size_per_learner, or no iter_batches_kwargs.drop_last"
            )
            raise ConfigError([Problem(what, "offline.input_", expected=expected)])
        while current is not None:
            with pipeline_errors():
                following: Rows | None = next(batches, None)
            yield current, following is None
            current = following


def train_batch(rows: Rows, device: torch.device, ends_pass: bool, module_id: str = DEFAULT_MODULE_ID) -> TrainBatch:
    """Return the batch of a module's train rows, column -> (B, ...) array as a pre-learner makes them."""

    def on_device(column: npt.NDArray[Any]) -> Tensor:
        # Arrays in Ray's object store are read-only, which torch has no notion of.
        return torch.from_numpy(np.require(column, requirements="W")).to(device, non_blocking=True)

    rows, reported = without_metrics(rows)
    columns = nested_columns({name: on_device(column) for name, column in rows.items()})
    mask = columns.get(LOSS_MASK)
    num_env_steps = nested.row_count(columns) if mask is None else int(mask.sum())
    return TrainBatch({module_id: columns}, num_env_steps, ends_pass, reported)


@dataclass(frozen=True)
class RayBatchReader:
    """The train batches of one learner; can be sent to its process.

    Attributes:
        rows: train rows: a data set, or a learner's share of one (`Dataset.streaming_split`).
        rows_per_batch: of one update.
        num_to_skip: batches that were learned from before.
        options: of `iter_batches`.
        module_id: the module that the rows are for.
    """

    rows: Dataset | DataIterator
    rows_per_batch: int
    num_to_skip: int
    options: Mapping[str, Any]
    module_id: str = DEFAULT_MODULE_ID

    def batches(self, device: torch.device) -> Generator[TrainBatch, None, None]:
        """Return batches on the device without end; a pass that is over begins again."""
        for number, (rows, ends_pass) in enumerate(passes(self.rows, self.rows_per_batch, self.options)):
            if number >= self.num_to_skip:
                yield train_batch(rows, device, ends_pass, self.module_id)


class SampledBatches:
    """The train batches that an `OfflineData.sample` of the user's own gives.

    Args:
        sample: (number of rows) -> train rows.
        rows_per_batch: of one update.
        num_to_skip: batches that were learned from before.
        beginning: digest of the first batch of the run that is resumed; None: unknown.
        name: of what samples, for messages.

    Attributes:
        beginning: digest of the first batch; None before it.
    """

    def __init__(
        self, sample: Callable[[int], Rows], rows_per_batch: int, num_to_skip: int, beginning: str | None, name: str
    ) -> None:
        self._sample, self._rows_per_batch, self._num_to_skip = sample, rows_per_batch, num_to_skip
        self._name = name
        self.beginning = beginning

    def batches(self, device: torch.device) -> Generator[TrainBatch, None, None]:
        """Return batches on the device without end.

        Raises:
            ConfigError: rows that are no train batch, or others than they were before an interruption.
        """
        for number in itertools.count():
            rows = self._rows()
            if number == 0:
                self._check_beginning(rows)
            if number >= self._num_to_skip:
                yield train_batch(rows, device, ends_pass=False)

    def _rows(self) -> Rows:
        rows = self._sample(self._rows_per_batch)
        try:
            flat = flat_columns(rows)
            if not flat or not nested.row_count(flat):
                raise ValueError("it is empty")
            nested.check_columns(flat)
        except (AttributeError, TypeError, ValueError) as error:
            what = f"sample of {self._name} gives no train batch: {error}"
            expected = "column -> (B, ...) array, as many rows in each"
            raise ConfigError([Problem(what, "offline.offline_data_class", type(rows).__name__, expected)]) from error
        return flat

    def _check_beginning(self, rows: Rows) -> None:
        digest = hashlib.sha256()
        for name in sorted(rows):
            digest.update(name.encode() + np.ascontiguousarray(rows[name]).tobytes())
        found = digest.hexdigest()[:16]
        if self.beginning not in (None, found):
            what = f"sample of {self._name} does not give the rows that it gave before: a run cannot go on in them"
            expected = "random numbers that follow from config.seed; or resume RUN_DIR --module-only"
            raise ConfigError([Problem(what, "offline.offline_data_class", expected=expected)])
        self.beginning = found
