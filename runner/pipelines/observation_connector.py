"""Base class of connectors that transform observations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import gymnasium as gym
import numpy as np

from runner.episodes import nested
from runner.episodes.columns import ColumnBlock
from runner.episodes.spaces import map_leaf_spaces
from runner.pipelines.common_connectors import obs_of_steps, observations_of
from runner.pipelines.connector import LOSS_MASK, OBS, Batch, Connector, Items
from runner.pipelines.custom_metrics import CustomMetrics
from runner.pipelines.requirements import Requirements
from runner.rows.running_episodes import RunningEpisodes


class ObservationConnector(Connector):
    """Base class of connectors that change observations. Override `transform` and usually also
    `recompute_output_observation_space`.

    The connector works before and after `AddObservationsFromEpisodesToBatch`: without an `obs` column it takes the
    observations from the episodes. In a learner pipeline rows are R, or R + E after `AddOneTsToEpisodesAndTruncate`.
    """

    requires = Requirements(writes=(OBS,), belongs_in=("env_to_module", "learner"))
    metrics: CustomMetrics | None = None
    """Object to report the metrics of `transform` to, see `Connector.reports`, or None if nothing is reported."""

    def __call__(self, *, batch: Batch, episodes: RunningEpisodes | ColumnBlock, **kwargs: Any) -> Batch:
        """Transform all rows of `obs`."""
        self.metrics = kwargs.get("metrics")
        obs = batch.get(OBS)
        if type(obs) is not np.ndarray:
            obs = observation_rows(type(self).__name__, batch, episodes)
        batch[OBS] = self.transform(obs, batch, episodes)
        return batch

    def transform(self, obs: Any, batch: Batch, episodes: Any) -> Any:
        """Return the new observations.

        Args:
            obs: (rows, ...) arrays, nested like the space.
            batch: the other columns so far.
            episodes: source of the observations: `RunningEpisodes` with one row each, or in a learner pipeline a
                `ColumnBlock` with many rows each.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement transform")


def observation_rows(connector: str, batch: Batch, episodes: RunningEpisodes | ColumnBlock) -> Any:
    """Return the batch's (rows, ...) observations, or the episodes' observations if there are none in the batch.

    Raises:
        TypeError: they are no longer arrays; the message names the connector.
    """
    if OBS in batch:
        return as_arrays(connector, batch[OBS])
    if isinstance(episodes, ColumnBlock) and OBS in batch.get(episodes.module_id, ()):
        raise TypeError(f"{connector}: column 'obs' is grouped by module; place it before AgentToModuleMapping")
    return observations_of(episodes, batch)


def as_arrays(connector: str, obs: Any) -> Any:
    if type(obs) is Items:
        return obs.stacked()
    for leaf in nested.leaves(obs):
        if not isinstance(leaf, np.ndarray):
            kind = type(leaf).__name__
            raise TypeError(f"{connector} needs arrays in column 'obs', got {kind}; place it before NumpyToTensor")
    return obs


def check_keys(connector: str, option: str, keys: Iterable[str], space: gym.Space[Any]) -> None:
    """Check that a Dict space has the keys that an option of a connector names.

    Raises:
        TypeError: a key does not exist, or the space is not a Dict.
    """
    known = list(space.spaces) if isinstance(space, gym.spaces.Dict) else []
    unknown = [key for key in keys if key not in known]
    if unknown:
        raise TypeError(f"{connector}: {option} contains unknown keys {unknown}; the keys of {space} are {known}")


def map_changed_leaves(fn: Callable[[gym.Space[Any]], Any], space: gym.Space[Any], left: Collection[str]) -> Any:
    """Return `fn(leaf)` for every leaf of a space, in its structure; None for leaves at the keys `left` of a Dict."""
    if not isinstance(space, gym.spaces.Dict):
        return map_leaf_spaces(fn, space)
    return {key: map_leaf_spaces(_none if key in left else fn, part) for key, part in space.spaces.items()}


def _none(space: gym.Space[Any]) -> None:
    """Return None for a leaf that does not change."""


def step_rows(column: Any, batch: Batch, block: ColumnBlock) -> Any:
    """Return the rows of the batch from a (R + E, ...) column with a row for each observation."""
    return column if LOSS_MASK in batch else obs_of_steps(column, block)
