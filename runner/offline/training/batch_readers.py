"""Read train batches from a Ray data set of train rows, or from a function that samples them."""

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
from runner.streams import integer_seed

if TYPE_CHECKING:
    from ray.data import DataIterator, Dataset

_PREFETCHED_BATCHES = 4

Rows = Mapping[str, Any]


def passes(
    rows: Dataset | DataIterator, rows_per_batch: int, options: Mapping[str, Any]
) -> Generator[tuple[Rows, bool], None, None]:
    """Yield batches of train rows endlessly, each with a flag for the last batch of a pass.

    Args:
        rows: train rows.
        rows_per_batch: rows per update.
        options: arguments of `iter_batches`. `local_shuffle_seed` gives each pass another order.

    Raises:
        ConfigError: a pass does not contain a batch.
    """
    arguments = {"prefetch_batches": _PREFETCHED_BATCHES, **options}
    seed = arguments.pop("local_shuffle_seed", None)
    for number in itertools.count():
        if seed is not None:
            arguments["local_shuffle_seed"] = integer_seed(seed, "local_shuffle", number)
        batches = iter(rows.iter_batches(batch_size=rows_per_batch, batch_format="numpy", **arguments))
        with pipeline_errors(), native_messages_to_log():
            current: Rows | None = next(batches, None)
        if current is None:
            what = f"the recorded data are too small for a train batch of {rows_per_batch} rows for each learner"
            fix = "use more data, reduce algorithm.train_batch_size_per_learner, or unset iter_batches_kwargs.drop_last"
            raise ConfigError([Problem(what, "offline.input_", fix=fix)])
        while current is not None:
            with pipeline_errors():
                following: Rows | None = next(batches, None)
            yield current, following is None
            current = following


def train_batch(rows: Rows, device: torch.device, ends_pass: bool, module_id: str = DEFAULT_MODULE_ID) -> TrainBatch:
    """Return the batch of a module's train rows, given as column -> array (B, ...) from a pre-learner."""

    def on_device(column: npt.NDArray[Any]) -> Tensor:
        # Arrays in Ray's object store are read-only, which torch does not support.
        return torch.from_numpy(np.require(column, requirements="W")).to(device, non_blocking=True)

    rows, reported = without_metrics(rows)
    columns = nested_columns({name: on_device(column) for name, column in rows.items()})
    mask = columns.get(LOSS_MASK)
    num_env_steps = nested.row_count(columns) if mask is None else int(mask.sum())
    return TrainBatch({module_id: columns}, num_env_steps, ends_pass, reported)


@dataclass(frozen=True)
class RayBatchReader:
    """Train batches of one learner. Can be sent to its process.

    Attributes:
        rows: train rows, as a data set or as a learner's share of one (`Dataset.streaming_split`).
        rows_per_batch: rows per update.
        num_to_skip: batches used before an interruption.
        options: arguments of `iter_batches`.
        module_id: module that learns from the rows.
    """

    rows: Dataset | DataIterator
    rows_per_batch: int
    num_to_skip: int
    options: Mapping[str, Any]
    module_id: str = DEFAULT_MODULE_ID

    def batches(self, device: torch.device) -> Generator[TrainBatch, None, None]:
        """Yield batches on the device endlessly, pass after pass."""
        for number, (rows, ends_pass) in enumerate(passes(self.rows, self.rows_per_batch, self.options)):
            if number >= self.num_to_skip:
                yield train_batch(rows, device, ends_pass, self.module_id)


class SampledBatches:
    """Train batches from a user-defined `OfflineData.sample`.

    Args:
        sample: (number of rows) -> train rows.
        rows_per_batch: rows per update.
        num_to_skip: batches used before an interruption.
        beginning: digest of the first batch before an interruption, or None.
        name: name of the class that samples, for messages.

    Attributes:
        beginning: digest of the first batch, or None if it has not been sampled.
    """

    def __init__(
        self, sample: Callable[[int], Rows], rows_per_batch: int, num_to_skip: int, beginning: str | None, name: str
    ) -> None:
        self._sample, self._rows_per_batch, self._num_to_skip = sample, rows_per_batch, num_to_skip
        self._name = name
        self.beginning = beginning

    def batches(self, device: torch.device) -> Generator[TrainBatch, None, None]:
        """Yield batches on the device endlessly.

        Raises:
            ConfigError: rows are not a valid train batch, or differ from the rows before an interruption.
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
                raise ValueError("it does not contain any rows")
            nested.check_columns(flat)
        except (AttributeError, TypeError, ValueError) as error:
            what = f"sample of {self._name} does not return a train batch: {error}"
            expected = "column -> array (B, ...), with the same number of rows in each"
            raise ConfigError([Problem(what, "offline.offline_data_class", type(rows).__name__, expected)]) from error
        return flat

    def _check_beginning(self, rows: Rows) -> None:
        digest = hashlib.sha256()
        for name in sorted(rows):
            digest.update(name.encode() + np.ascontiguousarray(rows[name]).tobytes())
        found = digest.hexdigest()[:16]
        if self.beginning not in (None, found):
            what = f"sample of {self._name} does not return the same rows as before, so the run cannot resume"
            fix = "derive its random numbers from config.seed, or resume RUN_DIR --module-only"
            raise ConfigError([Problem(what, "offline.offline_data_class", fix=fix)])
        self.beginning = found
