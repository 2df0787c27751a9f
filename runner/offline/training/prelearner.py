"""The pre-learner turns recorded rows into flat train rows, in each worker of the Ray Data pipeline.

A nested column becomes one flat column per leaf: `obs/position` for a dict key, `obs/##3` for a dict key that is an
integer, `obs/#0` for a tuple index. Metrics that connectors report for these rows are added as columns
`#<reduction>#<metric>` of bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from runner.config.callables import with_callables
from runner.config.errors import ConfigError, Problem
from runner.config.imports import import_target
from runner.config.offline import DEFAULT_BUFFER, OfflineConfig
from runner.config.schemas import ExperimentConfig
from runner.episodes import SingleAgentEpisode, nested
from runner.episodes.columns import ColumnBlock, block_from_episodes
from runner.modules.flat_parameters import FlatParameters
from runner.modules.rl_module import RLModule
from runner.offline.training.repeated_passes import pass_number
from runner.pipelines.connector import LOSS_MASK
from runner.pipelines.custom_metrics import ReducedMetrics, ReducedValue, merge_metrics
from runner.pipelines.pipeline import EnvToModulePipeline, LearnerConnectorPipeline, taken_metrics
from runner.pipelines.recorded_episodes import with_held_observations
from runner.replay import EpisodeReplayBuffer
from runner.streams import random_stream

TrainRows = dict[str, npt.NDArray[Any]]
_METRIC = "#"


def flat_columns(columns: Mapping[str, Any]) -> TrainRows:
    """Return one array (B, ...) per leaf.

    Raises:
        ValueError: a key contains a slash or starts with #, so the name would be ambiguous.
    """
    flat: TrainRows = {}
    for name, column in columns.items():
        _flatten(name, column, flat)
    return flat


def _flatten(name: str, column: Any, flat: TrainRows) -> None:
    if isinstance(column, Mapping):
        for key, part in column.items():
            is_text = isinstance(key, str)
            if is_text and ("/" in key or key.startswith("#")):
                raise ValueError(f"the key {key!r} of column {name} contains a slash or starts with #")
            _flatten(f"{name}/{key if is_text else f'##{key}'}", part, flat)
    elif isinstance(column, tuple):
        for place, part in enumerate(column):
            _flatten(f"{name}/#{place}", part, flat)
    else:
        flat[name] = np.ascontiguousarray(column)


def nested_columns(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Invert `flat_columns`, for leaves of any type."""
    tree: dict[str, Any] = {}
    for name, leaf in flat.items():
        *path, last = name.split("/")
        place = tree
        for key in path:
            place = place.setdefault(key, {})
        place[last] = leaf
    return {name: _with_tuples(column) for name, column in tree.items()}


def _with_tuples(column: Any) -> Any:
    if not isinstance(column, dict):
        return column
    parts = {key: _with_tuples(part) for key, part in column.items()}
    if all(key.startswith("#") and not key.startswith("##") for key in parts):
        return tuple(parts[f"#{place}"] for place in range(len(parts)))
    return {int(key[2:]) if key.startswith("##") else key: part for key, part in parts.items()}


def metric_columns(metrics: ReducedMetrics, num_rows: int) -> TrainRows:
    """Return metrics as columns (B,): value, weight and kept values, float64 as bytes in the first row."""
    columns: TrainRows = {}
    for name, reduced in metrics.items():
        column = columns[f"{_METRIC}{reduced.reduction}{_METRIC}{name}"] = np.full(num_rows, b"", object)
        if num_rows:
            column[0] = np.array([reduced.value, reduced.weight, *reduced.values]).tobytes()
    return columns


def without_metrics(rows: Mapping[str, npt.NDArray[Any]]) -> tuple[dict[str, npt.NDArray[Any]], ReducedMetrics]:
    """Return the columns without metrics, and the metrics reported for these rows, in order."""
    metrics: ReducedMetrics = {}
    others = {}
    for key, column in rows.items():
        if not key.startswith(_METRIC):
            others[key] = column
            continue
        _, reduction, name = key.split(_METRIC, 2)
        metrics[name] = ReducedValue(reduction)
        for value, weight, *values in (np.frombuffer(one).tolist() for one in column if one):
            merge_metrics(metrics, {name: ReducedValue(reduction, value, weight, values)})
    return others, metrics


# Names of columns in recorded tables without `input_read_schema`.
_IDS = ("eps_id", "agent_id", "module_id")
_STEP = ("obs", "actions", "rewards", "infos", "new_obs", "terminateds", "truncateds", "t")
SCHEMA = {name: name for name in (*_IDS, *_STEP)}


@dataclass(frozen=True)
class PreLearnerParts:
    """Parts of a pre-learner, made in its own process.

    Attributes:
        module: the run's module, on the worker's device.
        env_to_module: the module's pipeline, of which connectors that write to episodes are applied to recorded data.
        learner_pipeline: the module's pipeline, which returns tensors on the worker's device.
        columns: columns that module and loss read; all others are dropped.
    """

    module: RLModule
    env_to_module: EnvToModulePipeline
    learner_pipeline: LearnerConnectorPipeline
    columns: tuple[str, ...]


class PreLearnerSpec(Protocol):
    """Makes the parts of a pre-learner."""

    @property
    def observation_space(self) -> gym.Space[Any]:
        """Observation space of the environment."""

    @property
    def action_space(self) -> gym.Space[Any]:
        """Action space of the environment."""

    def build(self) -> PreLearnerParts:
        """Return new parts."""

    def with_shared_state(self, shared_state: Mapping[str, Any]) -> PreLearnerSpec:
        """Return a spec for the same parts with another state of connectors that learn from observations."""


class OfflinePreLearner:
    """Maps rows to episodes and then to train rows; derive from it for custom data (`offline.prelearner_class`).

    Override `_map_to_episodes` for rows in an unknown format, or `__call__` to replace all processing of a batch. A
    constructor must take the arguments below by name and need not call this one. The default `__call__` uses the
    experiment's learner pipeline, as edited under `connectors.learner`.

    Args:
        config: the experiment.
        module_spec: makes module and learner pipeline.
        decode: Arrow table of raw rows -> column block; None if `_map_to_episodes` is overridden.
        newest_module_state: called with the current version; returns the newest version and its parameters (P,), or
            None if it is current. None for pipelines that do not use the module.
        **kwargs: `offline.prelearner_kwargs`, also passed to `_map_to_episodes`.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        module_spec: PreLearnerSpec,
        decode: Callable[[pa.Table], ColumnBlock] | None = None,
        newest_module_state: Callable[[int], tuple[int, Any] | None] | None = None,
        **kwargs: Any,
    ) -> None:
        torch.set_num_threads(1)
        self.config = config
        self.observation_space, self.action_space = module_spec.observation_space, module_spec.action_space
        self.kwargs = kwargs
        parts = module_spec.build()
        self._module, self._learner_connector, self._columns = parts.module, parts.learner_pipeline, parts.columns
        self._env_to_module = parts.env_to_module
        self._weights = FlatParameters(self._module)
        self._buffer = _make_buffer(config.offline)
        self._decode = decode
        self._newest_module_state = newest_module_state
        self._version = 0

    def __call__(self, batch: Any) -> TrainRows:
        """Return the train rows of a batch of raw rows.

        Args:
            batch: a `pyarrow.Table`; for a subclass that overrides `_map_to_episodes`, column -> array.

        Returns:
            Column -> array (B, ...), with nested columns flattened (see `flat_columns`) and rows in random order, plus
            columns of metrics.
        """
        self._take_newest_module()
        recorded = self._episodes_of(batch)
        if not len(recorded):
            return {}  # only episodes that ended before their first step, or episodes of other modules
        block = with_held_observations(recorded, self._env_to_module, self._module)
        # Random numbers depend on the first episode and the pass, not on the speed of workers.
        name = zlib.crc32(block.episode_ids[0].encode())
        stream = random_stream(self.config.seed, "prelearner", name, pass_number(batch))
        if self._buffer is not None:
            self._buffer.add(block)
            block = self._buffer.sample(self.config.algorithm.train_batch_size_per_learner, stream)
        module_id = block.module_id
        train_batch = self._learner_connector(
            rl_module={module_id: self._module}, batch={}, episodes=block, shared_data={}
        )[module_id]
        columns = {name: train_batch[name] for name in (*self._columns, LOSS_MASK) if name in train_batch}
        rows = nested.map_leaves(_to_numpy, columns)
        shuffled = flat_columns(self._shuffled(rows, stream))
        reported = taken_metrics({module_id: [self._learner_connector]})
        return {**shuffled, **metric_columns(reported, nested.row_count(shuffled))}

    @staticmethod
    def _shuffled(columns: dict[str, Any], stream: np.random.Generator) -> dict[str, Any]:
        """Return the env steps, or the sequences of a recurrent module that contain one, in random order."""
        mask = columns.pop(LOSS_MASK, None)
        if mask is None:
            rows = np.arange(nested.row_count(columns))
        elif mask.ndim == 1:
            rows = np.flatnonzero(mask)
        else:
            rows = np.flatnonzero(mask.any(1))
            columns[LOSS_MASK] = mask
        order = stream.permutation(rows)
        return {name: nested.take(column, order) for name, column in columns.items()}

    def _take_newest_module(self) -> None:
        newest = self._newest_module_state(self._version) if self._newest_module_state else None
        if newest is not None:
            self._version, parameters = newest
            self._weights.load(parameters)

    def _episodes_of(self, batch: Any) -> ColumnBlock:
        if self._decode is not None and not self.maps_rows_itself():
            return self._decode(batch)
        offline = self.config.offline
        episodes: Sequence[SingleAgentEpisode] = self._map_to_episodes(
            False,
            batch,
            schema=SCHEMA | offline.input_read_schema,
            to_numpy=True,
            input_compress_columns=offline.input_compress_columns,
            observation_space=self.observation_space,
            action_space=self.action_space,
            **self.kwargs,
        )["episodes"]
        return block_from_episodes(episodes)

    @classmethod
    def maps_rows_itself(cls) -> bool:
        """Return whether a subclass overrides `_map_to_episodes`; its batches are then column -> array."""
        return cls._map_to_episodes is not OfflinePreLearner._map_to_episodes

    @staticmethod
    def _map_to_episodes(
        is_multi_agent: bool,
        batch: Any,
        schema: Mapping[str, str] = MappingProxyType(SCHEMA),
        to_numpy: bool = False,
        input_compress_columns: Sequence[str] | None = None,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, list[SingleAgentEpisode]]:
        """Return rows in an unknown format as `{"episodes": [...]}`. Override this method.

        Args:
            is_multi_agent: always false.
            batch: column -> array for a batch of rows.
            schema: column name -> its name in the files.
            to_numpy: whether the episodes should hold arrays.
            input_compress_columns: columns packed with LZ4.
            observation_space, action_space: spaces of the environment.
            **kwargs: `offline.prelearner_kwargs`.
        """
        raise NotImplementedError("override _map_to_episodes to read rows in an unknown format")


def _make_buffer(offline: OfflineConfig) -> EpisodeReplayBuffer | None:
    """Return the configured buffer, if any.

    Raises:
        ConfigError: the buffer cannot be created with the given arguments.
    """
    arguments = with_callables(offline.prelearner_buffer_kwargs, "offline.prelearner_buffer_kwargs")
    if offline.prelearner_buffer_class is None and not arguments:
        return None
    path = offline.prelearner_buffer_class or DEFAULT_BUFFER
    buffer_class = import_target(path, "offline.prelearner_buffer_class", EpisodeReplayBuffer)
    try:
        buffer: EpisodeReplayBuffer = buffer_class(**arguments)
    except (TypeError, ValueError) as error:
        what = f"{path} cannot be created: {error}"
        raise ConfigError([Problem(what, "offline.prelearner_buffer_kwargs", str(arguments))]) from error
    return buffer


def _to_numpy(value: Tensor | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value


def prelearner_class(config: ExperimentConfig) -> type[OfflinePreLearner]:
    """Return the class of `offline.prelearner_class`, or the default one."""
    path = config.offline.prelearner_class
    if path is None:
        return OfflinePreLearner
    found: type[OfflinePreLearner] = import_target(path, "offline.prelearner_class", OfflinePreLearner)
    return found
