"""Connectors that change the environment's observations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from runner.episodes import SingleAgentEpisode, nested
from runner.episodes.spaces import leaf_spaces
from runner.pipelines.connector import OBS, Batch
from runner.pipelines.connector_graph import ConnectorGraph, ObservationGraph
from runner.pipelines.connector_kinds import EnvToModuleConnector
from runner.pipelines.flat_encoding import FlatEncoding, Floats, Space
from runner.pipelines.observation_connector import ObservationConnector, as_arrays, check_keys
from runner.pipelines.requirements import Requirements
from runner.rows.running_episodes import RunningEpisodes


class FlattenObservations(ObservationConnector):
    """Flattens observations of any nesting to one float32 vector (rows, D); Discrete and MultiDiscrete become one-hot.

    Leaves are in the order of the space's keys. Works in env-to-module and learner pipelines.

    Args:
        keys_to_remove: top-level keys of a Dict space that are left out.
    """

    def __init__(self, keys_to_remove: Sequence[str] | None = None) -> None:
        self._removed = tuple(keys_to_remove or ())
        self._encoding: FlatEncoding | None = None
        self._is_flat_already = False

    def recompute_output_observation_space(
        self, input_observation_space: Space, input_action_space: Space
    ) -> gym.spaces.Box:
        """Return a 1-D Box with the leaves' bounds.

        Raises:
            TypeError: a leaf cannot be flattened, or a key to remove does not exist.
        """
        space = input_observation_space
        check_keys(type(self).__name__, "keys_to_remove", self._removed, space)
        leaves = ((path, leaf) for path, leaf in leaf_spaces(space) if not path or path[0] not in self._removed)
        self._encoding = FlatEncoding(leaves, type(self).__name__)
        self._is_flat_already = isinstance(space, gym.spaces.Box) and space.dtype == np.float32
        return gym.spaces.Box(self._encoding.low, self._encoding.high, dtype=np.float32)

    def transform(self, obs: Any, batch: Batch, episodes: Any) -> Floats:
        """Return (rows, D); a float32 Box is not copied."""
        if self._encoding is None:
            raise RuntimeError("FlattenObservations was called before its spaces were set")
        if self._is_flat_already:
            vectors: Floats = obs.reshape(len(obs), self._encoding.size)
            return vectors
        return self._encoding.encode(obs, nested.row_count(obs))

    def to_graph(self) -> ConnectorGraph | None:
        """Return the equivalent torch graph."""
        assert self._encoding is not None  # set when the pipeline passed the spaces
        return ObservationGraph(self._encoding.encode_tensors)


class WriteObservationsToEpisodes(EnvToModuleConnector):
    """Writes the `obs` (N, ...) of the batch to the episodes, so that the learner gets the same observations as
    the policy.

    Place it after the connectors that transform observations; the learner pipeline then does not need them.
    """

    requires = Requirements(reads=(OBS,), writes_obs_to_episodes=True)

    def __call__(self, *, batch: Batch, episodes: RunningEpisodes, **kwargs: Any) -> Batch:
        """Write the rows; the batch is unchanged.

        Raises:
            TypeError: the connector comes after `NumpyToTensor`.
        """
        obs = batch[OBS]
        if type(obs) is not np.ndarray:
            obs = as_arrays(type(self).__name__, obs)
        episodes.write_obs(obs)
        return batch

    def to_graph(self) -> ConnectorGraph | None:
        """Return None, because graphs do not have episodes."""
        return None


class SingleAgentObservationPreprocessor(ObservationConnector, ABC):
    """Base class of connectors that change observations one by one: override `preprocess` and, if shapes, dtypes or
    bounds change, `recompute_output_observation_space`.

    Results are stacked into the column `obs` (N, ...) and written to the episodes, so that the learner gets the
    same observations as the policy. For env-to-module pipelines only. It loops over N sub-environments; if that is too
    slow, derive from `ObservationConnector`.
    """

    requires = Requirements(belongs_in=("env_to_module",), writes_obs_to_episodes=True)

    @abstractmethod
    def preprocess(self, observation: Any, episode: SingleAgentEpisode) -> Any:
        """Return the observation to use instead of `observation`, the newest one of `episode`. All results must have
        the same structure, shapes and dtypes.
        """

    def transform(self, obs: Any, batch: Batch, episodes: RunningEpisodes) -> Any:
        """Return all rows, processed one by one."""
        name = type(self).__name__
        items = [self.preprocess(*pair) for pair in zip(nested.unstack(obs), episodes, strict=True)]
        try:
            rows = nested.stack(items)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}.preprocess returns values that cannot form column 'obs': {error}") from None
        episodes.write_obs(rows)
        return rows


class MultiAgentObservationPreprocessor(SingleAgentObservationPreprocessor):
    """`SingleAgentObservationPreprocessor` for multi-agent runs.

    Each module has a pipeline: `preprocess` is called for each acting agent of the pipeline's module.
    `episode.agent_id` and `episode.module_id` identify the agent.
    """
