"""Recorded data from files to train batches: a Ray Data pipeline, read -> pre-learner -> iteration."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runner.config.errors import ConfigError, Problem
from runner.config.imports import import_target
from runner.config.schemas import ExperimentConfig
from runner.episodes import nested
from runner.offline.endless import endless_dataset, parts_in_memory, parts_of_source
from runner.offline.prelearner import ModuleSpec, OfflinePreLearner
from runner.offline.source import open_source
from runner.offline.source_stream import Source
from runner.offline.train_rows import nested_columns
from runner.offline.workers import ModuleBoard, pool_options, quiet_ray_data
from runner.pipelines.piece import DEFAULT_MODULE_ID, LOSS_MASK

if TYPE_CHECKING:
    from ray.data import Dataset

_PREFETCHED_BATCHES = 4


@dataclass(frozen=True)
class TrainBatch:
    """What one update learns from.

    Attributes:
        columns: module id -> column -> tensor, as a learner takes it.
        num_env_steps: rows with a loss.
        ends_pass: whether it is the last one of a pass over the data.
    """

    columns: dict[str, dict[str, Any]]
    num_env_steps: int
    ends_pass: bool


class OfflineData:
    """The data set of an experiment; subclass it for a pipeline of your own (`offline.offline_data_class`).

    A subclass sets `data` in its constructor, a Ray data set of raw rows for the pre-learners, and leaves the rest
    as it is, or overrides `batches`.

    Args:
        config: the experiment.

    Attributes:
        data: raw rows, one pass over them.
        decode: Arrow table of raw rows -> column block; None if the pre-learner maps rows itself.
        source: what `offline.input_` names; None in subclasses that read by themselves.

    Raises:
        ConfigError: the data are not there, not readable, or not what their schema says.
    """

    data: Dataset
    decode: Callable[..., Any] | None = None
    source: Source | None = None
    shared_state: dict[str, Any] = {}  # noqa: RUF012 - recorded data share nothing between runners
    _num_batches = 0
    _num_read_before = 0
    _pass: Generator[TrainBatch, None, None] | None = None

    def __init__(self, config: ExperimentConfig) -> None:
        self.config = config
        source = open_source(config.offline)
        self.source, self.decode, self.data = source, source.decode, source.dataset()

    # -- the pipeline ----------------------------------------------------------------------------------------------

    def connect(self, spec: ModuleSpec, device: torch.device, board: ModuleBoard | None) -> None:
        """Put the pre-learners behind the raw rows, and materialise what the configuration says.

        Args:
            spec: makes module and learner pipeline in the workers.
            device: where train batches go.
            board: newest module parameters, for pipelines that read the module.

        Raises:
            ConfigError: the data do not fit the environment's spaces.
        """
        offline = self.config.offline
        self._device, self._board = device, board
        quiet_ray_data()
        if self.source is not None:
            self.source.check_spaces(spec.observation_space, spec.action_space)
        prelearner = OfflinePreLearner
        if offline.prelearner_class is not None:
            prelearner = import_target(offline.prelearner_class, "offline.prelearner_class", OfflinePreLearner)
        self._mapped = self._raw_rows().map_batches(
            prelearner,
            fn_constructor_kwargs={
                "config": self.config,
                "module_spec": spec,
                "decode": self.decode,
                "newest_module_state": board,
                **offline.prelearner_kwargs,
            },
            batch_format="numpy" if prelearner.maps_rows_itself() else "pyarrow",
            batch_size=offline.input_read_batch_size,
            **pool_options(offline),
        )
        if offline.materialize_mapped_data:
            self._mapped = self._mapped.materialize()

    def _raw_rows(self) -> Dataset:
        """One pass over the raw rows, or as many as a stream has."""
        offline = self.config.offline
        if offline.materialize_mapped_data:
            return self.data
        if offline.materialize_data:
            return endless_dataset(parts_in_memory(self.data), self.config.seed)
        if self.source is not None:
            return endless_dataset(parts_of_source(self.source), self.config.seed)
        return self.data

    def batches(self) -> Iterator[TrainBatch]:
        """Train batches of `train_batch_size_per_learner` env steps without end; a pass that is over begins again."""
        while True:
            self._pass = self._one_pass()
            for batch in self._pass:
                self._num_batches += 1
                if self._num_batches > self._num_read_before:
                    yield batch

    def _one_pass(self) -> Generator[TrainBatch, None, None]:
        options = {"prefetch_batches": _PREFETCHED_BATCHES} | self.config.offline.iter_batches_kwargs
        rows = iter(self._mapped.iter_batches(batch_size=self._rows_per_batch, batch_format="numpy", **options))
        current = next(rows, None)
        if current is None:
            raise ConfigError([Problem("the recorded data have no step to learn from", where="offline.input_")])
        while current is not None:
            following = next(rows, None)
            yield self._train_batch(current, following is None)
            current = following

    @property
    def _rows_per_batch(self) -> int:
        """Env steps of a batch; with memory, sequences that may hold as many."""
        module = self.config.module
        per_row = module.max_seq_len if module.use_lstm or module.use_gru else 1
        return max(1, self.config.algorithm.train_batch_size_per_learner // per_row)

    def _train_batch(self, rows: Mapping[str, Any], ends_pass: bool) -> TrainBatch:
        columns = nested_columns({name: self._tensor(column) for name, column in rows.items()})
        mask = columns.get(LOSS_MASK)
        num_env_steps = nested.row_count(columns) if mask is None else int(mask.sum())
        return TrainBatch({DEFAULT_MODULE_ID: columns}, num_env_steps, ends_pass)

    def _tensor(self, column: npt.NDArray[Any]) -> Tensor:
        # Arrays in Ray's object store are read-only, which torch has no notion of.
        return torch.from_numpy(np.require(column, requirements="W")).to(self._device, non_blocking=True)

    # -- as a source of experience ---------------------------------------------------------------------------------

    @property
    def follows_module(self) -> bool:
        """Whether the pre-learners want to know the module's newest parameters."""
        return self._board is not None

    def set_weights(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Let the pre-learners work with these parameters, if their pipeline reads the module."""
        if self._board is not None:
            self._board.post(weights[DEFAULT_MODULE_ID])

    def get_state(self) -> dict[str, Any]:
        """How many batches have been read."""
        return {"num_batches": self._num_batches, "shared": self.shared_state}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Skip the batches that were read before."""
        self._num_read_before = int(state["num_batches"])

    def start_anew(self, state: Mapping[str, Any]) -> None:
        """Read from the start, as it is."""

    def close(self) -> None:
        """End the execution; Ray frees the data with the last reference to them."""
        if self._pass is not None:
            self._pass.close()
        del self._mapped
