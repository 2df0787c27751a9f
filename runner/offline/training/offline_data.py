"""Turn recorded data into train batches with Ray Data: read files, apply pre-learners, iterate over batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runner.compat.ray_data import end_execution
from runner.config.callables import with_callables
from runner.config.errors import ConfigError, Problem
from runner.config.offline import settings_of_reading
from runner.config.operators import RECORDED_DATA
from runner.config.schemas import ExperimentConfig
from runner.episodes import nested
from runner.episodes.columns import EPISODE_COLUMNS
from runner.learners.train_batch import BatchReader
from runner.offline.files.ray_data import read_rows
from runner.offline.formats.registry import file_kinds
from runner.offline.reading.recorded_source import RecordedSource
from runner.offline.reading.source import open_source
from runner.offline.training.batch_readers import RayBatchReader, Rows, SampledBatches, passes
from runner.offline.training.preflight import check_trajectories
from runner.offline.training.prelearner import OfflinePreLearner, PreLearnerParts, PreLearnerSpec, prelearner_class
from runner.offline.training.repeated_passes import (
    PipelineMonitor,
    endless_dataset,
    parts_in_memory,
    repeated_dataset,
    source_parts,
)
from runner.offline.training.workers import (
    ModuleBoard,
    limited_stream,
    native_messages_to_log,
    pipeline_errors,
    pool_options,
    remote_args_allowed,
)
from runner.parts import Part
from runner.pipelines.connector import DEFAULT_MODULE_ID
from runner.pipelines.requirements import Requirements
from runner.pipelines.train_batch_connectors import AddInfosFromEpisodesToTrainBatch

if TYPE_CHECKING:
    from ray.data import Dataset

# Size of the shuffled blocks of data in memory, in train batches.
_BATCHES_OF_BLOCK = 8
_SMALLEST_BLOCK = 2**16


def columns_read(parts: PreLearnerParts) -> set[str] | None:
    """Return the columns that module, loss and connectors read, or None if they may read any columns or infos."""
    connectors = [*parts.env_to_module.every_connector(), *parts.learner_pipeline.every_connector()]
    are_of_runner = all(type(connector).__module__.startswith("runner.") for connector in connectors)
    if parts.module.is_stateful or not are_of_runner:
        return None
    if any(isinstance(connector, AddInfosFromEpisodesToTrainBatch) for connector in connectors):
        return None
    return {*parts.columns, *(column for connector in connectors for column in Requirements.of(connector).reads)}


class OfflineData(Part):
    """Recorded data of an experiment; derive from it to write your own pipeline (`offline.offline_data_class`).

    A subclass sets `data` in its constructor: a Ray data set of raw rows for the pre-learners. Alternatively, it
    overrides `sample`, which returns the train rows of each update.

    Args:
        config: the experiment.
        source: the opened source of `offline.input_`, or None to open it here.
        module_id: module that learns from the data.
        num_pipelines: number of modules with a pipeline; their pre-learners share a CPU.

    Attributes:
        data: raw rows of one pass.
        decode: Arrow table of raw rows -> column block; None if the pre-learner maps rows itself.
        source: source of `offline.input_`; None in subclasses that read the data themselves.
        shared_state: module id -> connector name -> state learned from the observations.
        num_batches: number of batches that each learner has used.

    Raises:
        ConfigError: the data are missing, not readable, or do not match their schema.
    """

    data: Dataset
    decode: Callable[..., Any] | None = None
    source: RecordedSource | None = None
    shared_state: Mapping[str, Any] = MappingProxyType({})
    num_batches = 0
    module_id = DEFAULT_MODULE_ID
    _steps_per_row = 1  # more for sequences
    _num_pipelines = 1
    _board: ModuleBoard | None = None
    _monitor: PipelineMonitor | None = None
    _pass_over_rows: Iterator[tuple[Rows, bool]] | None = None
    _sampled: SampledBatches | None = None
    _beginning: str | None = None  # digest of the first rows before an interruption

    name, settings_key = RECORDED_DATA, "offline"

    def __init__(
        self,
        config: ExperimentConfig,
        source: RecordedSource | None = None,
        module_id: str = DEFAULT_MODULE_ID,
        num_pipelines: int = 1,
    ) -> None:
        self.config = config
        self.module_id, self._num_pipelines = module_id, num_pipelines
        if prelearner_class(self.config).maps_rows_itself():
            self.data = read_rows(config.offline, file_kinds())
            return
        self._use(open_source(config.offline) if source is None else source)

    def _use(self, source: RecordedSource) -> None:
        self.source, self.decode, self.data = source, source.decode, source.dataset()

    # -- the pipeline ----------------------------------------------------------------------------------------------

    def connect(self, spec: PreLearnerSpec, board: ModuleBoard | None) -> None:
        """Apply the pre-learners to the raw rows, and materialise the data if configured.

        Args:
            spec: makes module and learner pipeline in the workers.
            board: newest module parameters, for pipelines that use the module.

        Raises:
            ConfigError: the data do not fit the environment's spaces.
        """
        offline = self.config.offline
        self._spec, self._board = spec, board
        if self._samples_itself:
            self._check_sampling()
        parts = spec.build()
        self._steps_per_row = parts.module.config.max_seq_len if parts.module.is_stateful else 1
        if self.source is not None:
            self.source.check_spaces(spec.observation_space, spec.action_space)
            check_trajectories(self.source, parts.learner_pipeline, parts.module)
            self._leave_out_unread(self.source, parts)
        prelearner = prelearner_class(self.config)
        arguments = {
            "config": self.config,
            "module_spec": spec,
            "decode": self.decode,
            "newest_module_state": board,
            **with_callables(offline.prelearner_kwargs, "offline.prelearner_kwargs"),
        }
        rows = self._raw_rows()
        with remote_args_allowed():
            self._mapped: Any = rows.map_batches(
                prelearner,
                fn_constructor_kwargs=arguments,
                batch_format="numpy" if prelearner.maps_rows_itself() else "pyarrow",
                batch_size=self._rows_per_call,
                **pool_options(offline, self._num_pipelines),
            )
        if offline.materialize_mapped_data:
            with pipeline_errors(), native_messages_to_log():
                self._mapped = self._mapped.materialize()
        self._monitor = PipelineMonitor(self._mapped)

    def _leave_out_unread(self, source: RecordedSource, parts: PreLearnerParts) -> None:
        """Skip unused infos and extra model outputs. User-defined parts may use any, so nothing is skipped for them."""
        offline = self.config.offline
        read = columns_read(parts)
        if read is None or prelearner_class(self.config) is not OfflinePreLearner or offline.prelearner_buffer_class:
            return
        recorded = [name for name in source.layout.columns if name not in EPISODE_COLUMNS]
        self._use(source.narrowed([name for name in recorded if name in read], with_infos=False))

    def _raw_rows(self) -> Dataset:
        """Return one pass over the raw rows, or all passes of a stream."""
        offline = self.config.offline
        if offline.materialize_data:
            parts = parts_in_memory(self.data, self._rows_per_call)
            if self.source is None:
                return repeated_dataset(parts, self.config.seed)
            with limited_stream(max(_SMALLEST_BLOCK, self._steps_of_block * self.source.layout.bytes_per_step())):
                return repeated_dataset(parts, self.config.seed)
        if offline.materialize_mapped_data or self.source is None:
            return self.data
        if self.source.may_be_endless:
            with limited_stream(_SMALLEST_BLOCK):  # a block is passed on when it is full
                return endless_dataset(self.source.episode_tables)
        return repeated_dataset(source_parts(self.source), self.config.seed)

    @cached_property
    def _rows_per_call(self) -> int | None:
        """Rows that a pre-learner receives per call, or None for complete blocks."""
        offline = self.config.offline
        if offline.input_read_batch_size is not None or not offline.materialize_data or self.source is None:
            return offline.input_read_batch_size
        return max(1, int(self._steps_of_block / self.source.first_block().lengths.mean()))

    @property
    def _steps_of_block(self) -> int:
        return _BATCHES_OF_BLOCK * self.config.algorithm.train_batch_size_per_learner

    def sample(self, num_samples: int) -> Mapping[str, Any]:
        """Return the train rows of the next update; override it to sample rows yourself.

        It is called in the run's process, with a single learner (`learners.num_learners=0`). A resumed run repeats the
        earlier calls and drops their rows. It stops with an error if the first rows differ from before, so derive
        random numbers from `config.seed`.

        Args:
            num_samples: rows of a batch, one per env step.

        Returns:
            Column -> array (B, ...) or nested mapping of arrays, with the columns that module and loss read.
        """
        if self._pass_over_rows is None:
            self._pass_over_rows = passes(self._mapped, num_samples, self._iteration_options)
        rows, _ = next(self._pass_over_rows)
        return rows

    def readers(self, num_learners: int) -> Sequence[BatchReader]:
        """Return one reader per learner, with batches of `train_batch_size_per_learner` env steps."""
        if self._samples_itself:
            self._pass_over_rows = None
            arguments = (self._rows_per_batch, self.num_batches, self._beginning, type(self).__name__)
            self._sampled = SampledBatches(self.sample, *arguments)
            return [self._sampled]
        shares: list[Any] = [self._mapped]
        if num_learners > 1:
            shares = self._mapped.streaming_split(num_learners, equal=True)
        options = self._iteration_options
        return [
            RayBatchReader(share, self._rows_per_batch, self.num_batches, options, self.module_id) for share in shares
        ]

    @property
    def _samples_itself(self) -> bool:
        return type(self).sample is not OfflineData.sample

    def _check_sampling(self) -> None:
        """Reject options that a user-defined `sample` does not support."""
        name = f"{type(self).__name__} overrides sample, which"
        if self.config.learners.num_learners > 0:
            got = str(self.config.learners.num_learners)
            what = f"{name} only works with a single learner in the run's process"
            raise ConfigError([Problem(what, "learners.num_learners", got, "0")])
        if self.config.offline.dataset_num_iters_per_learner is None:
            where = "offline.dataset_num_iters_per_learner"
            raise ConfigError([Problem(f"{name} does not end a pass over the data", where, "null", "1 or more")])

    @property
    def _iteration_options(self) -> dict[str, Any]:
        options = dict(self.config.offline.iter_batches_kwargs)
        if options.get("local_shuffle_buffer_size") is not None:
            options.setdefault("local_shuffle_seed", self.config.seed)
        return options

    @property
    def _rows_per_batch(self) -> int:
        """Rows per batch: env steps, or the number of sequences that hold that many env steps in a recurrent module."""
        return max(1, self.config.algorithm.train_batch_size_per_learner // self._steps_per_row)

    # -- progress --------------------------------------------------------------------------------------------------

    def num_until_synch(self, most: int | None) -> int | None:
        """Return the number of updates, at most `most`, before the pre-learners need the newest weights."""
        if not self.follows_module:
            return most
        return self._until_synch if most is None else min(most, self._until_synch)

    def count(self, num_batches: int, ends_pass: bool) -> bool:
        """Count the batches used by each learner. Return whether the pre-learners need the newest weights."""
        is_due = self.follows_module and num_batches == self._until_synch
        self.num_batches += num_batches
        if ends_pass and self._monitor is not None:
            self._monitor.look()
        return is_due

    @property
    def _until_synch(self) -> int:
        period = self.config.offline.prelearner_module_synch_period
        return period - self.num_batches % period

    # -- metrics ---------------------------------------------------------------------------------------------------

    def metrics(self) -> Mapping[str, float | int | None]:
        """Return the metrics under `offline_data/` since the last call; empty for user-defined pipelines."""
        return {} if self._monitor is None else self._monitor.progress()

    # -- part of a run ---------------------------------------------------------------------------------------------

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings that the state depends on: how data are read, but not how they are recorded."""
        return settings_of_reading(asdict(self.config.offline))

    @property
    def follows_module(self) -> bool:
        """Whether the pre-learners use the module's newest parameters."""
        return self._board is not None

    def use_shared_state(self, shared_state: Mapping[str, Any]) -> None:
        """Restore the connectors' state from a checkpoint or from the run of a loaded module."""
        mine = self.shared_state
        state = {**mine, **{id_: {**mine.get(id_, {}), **connectors} for id_, connectors in shared_state.items()}}
        if not nested.equal(dict(mine), state):
            self.shared_state = state
            self.connect(self._spec.with_shared_state(state), self._board)

    def set_weights(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Send these parameters to the pre-learners if their pipeline uses the module."""
        if self._board is not None:
            self._board.post(weights[self.module_id])

    def get_state(self) -> dict[str, Any]:
        """Return the number of used batches and the parameters that the pre-learners use."""
        posted = None if self._board is None else self._board.posted
        module = {} if posted is None else {"module": posted.copy()}
        beginning = None if self.source is None else self.source.beginning()
        if self._samples_itself:
            beginning = self._beginning if self._sampled is None else self._sampled.beginning
        known = {} if beginning is None else {"beginning": beginning}
        return {"num_batches": self.num_batches, "shared": dict(self.shared_state), **known, **module}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Make later `readers` skip the batches used before.

        Raises:
            ConfigError: a stream or query starts with other rows than before, so the position cannot be found.
        """
        if self._samples_itself:
            self._beginning = state.get("beginning")
        elif self.source is not None and state.get("beginning") not in (None, self.source.beginning()):
            what = (
                "the data does not start with the same episodes as when the checkpoint was written, so the run cannot "
                "resume"
            )
            fix = "make the function yield the same episodes with the same id_, or resume RUN_DIR --module-only"
            raise ConfigError([Problem(what, "offline.input_", self.source.where, fix=fix)])
        self.num_batches = int(state["num_batches"])
        if self._board is not None and "module" in state:  # the learner's newer parameters follow at the next update
            self._board.post(np.asarray(state["module"], np.float32))

    def close(self) -> None:
        """Release the data; Ray frees them with the last reference."""
        self._monitor = None
        self._board = None
        mapped, self._mapped = self._mapped, None
        if mapped is not None:
            end_execution(mapped)
