"""Connectors for both env-to-module and learner pipelines."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from runner.episodes import nested
from runner.episodes.columns import Column, ColumnBlock
from runner.pipelines.connector import LOSS_MASK, OBS, Batch, Connector, Items
from runner.pipelines.connector_graph import ConnectorGraph
from runner.pipelines.connector_graphs import AddObservationsGraph
from runner.pipelines.connector_kinds import LearnerConnector
from runner.pipelines.requirements import Requirements
from runner.rows.running_episodes import RunningEpisodes


class AddObservationsFromEpisodesToBatch(Connector):
    """Adds `obs`: the newest observation of each running episode (N, ...), or all observations of the chunks.

    In a learner pipeline these are the observations (R, ...) in which actions were taken. After
    `AddOneTsToEpisodesAndTruncate` they also include the last one of each chunk (R + E, ...).
    """

    requires = Requirements(writes=(OBS,))

    def __call__(self, *, batch: Batch, episodes: RunningEpisodes | ColumnBlock, **kwargs: Any) -> Batch:
        """Add the column, unless the batch already contains it."""
        if OBS not in batch:
            batch[OBS] = observations_of(episodes, batch)
        return batch

    def to_graph(self) -> ConnectorGraph | None:
        """Return the equivalent torch graph."""
        return AddObservationsGraph()


def observations_of(episodes: RunningEpisodes | ColumnBlock, batch: Batch) -> Any:
    """Return the observations that `AddObservationsFromEpisodesToBatch` adds; also accepts a list of episodes.

    For running episodes they are copies, so later connectors and the module may write into them.
    """
    if isinstance(episodes, ColumnBlock):
        obs = episodes.columns[OBS]
        return obs if LOSS_MASK in batch else obs_of_steps(obs, episodes)
    obs = episodes.current_obs
    return obs.copy() if type(obs) is np.ndarray else nested.map_leaves(_copied, obs)


def _copied(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


class AgentToModuleMapping(LearnerConnector):
    """Groups the columns by acting module: `{module id: {column: rows}}`.

    Pipelines run once per module, with the chunks of all agents that it acts for.
    """

    def __call__(self, *, batch: Batch, episodes: ColumnBlock, **kwargs: Any) -> Batch:
        """Return the batch grouped by module."""
        return {episodes.module_id: batch}


class BatchIndividualItems(Connector):
    """Converts columns that connectors filled item by item to arrays; other columns do not change."""

    def __call__(self, *, batch: Batch, episodes: Any = None, **kwargs: Any) -> Batch:
        """Stack items in the order in which their episodes were added, also in a batch grouped by module."""
        for column, rows in batch.items():
            if type(rows) is Items:
                batch[column] = rows.stacked(LOSS_MASK in batch, episodes)
            elif type(rows) is dict:
                self(batch=rows, episodes=episodes)
        return batch

    def to_graph(self) -> ConnectorGraph | None:
        """Return None, because columns are tensors in a graph."""
        return None


class NumpyToTensor(Connector):
    """Converts all arrays to tensors on the module's device; on the CPU without a copy."""

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self._device = torch.device(device)
        self._on_host = self._device.type == "cpu"

    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        """Convert every array, also in nested columns and in a batch grouped by module."""
        for key, value in batch.items():
            batch[key] = self._tensor(value) if type(value) is np.ndarray else self._converted(value)
        return batch

    def to_graph(self) -> ConnectorGraph | None:
        """Return None, because columns are tensors in a graph."""
        return None

    def _converted(self, value: Any) -> Any:
        if type(value) is dict:
            return self(batch=dict(value))
        if isinstance(value, np.ndarray):
            return self._tensor(value)
        if type(value) is tuple:
            return tuple(self._converted(part) for part in value)
        return value

    def _tensor(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._on_host else tensor.to(self._device)


def obs_of_steps(obs: Column, block: ColumnBlock, later: int = 0) -> Column:
    """Return copies of the observations (R, ...) before each step of a block, or after each step if `later` is 1.

    Args:
        obs: (R + E, ...) observations of the block, as earlier connectors have made them.
        block: E chunks of R steps.
        later: 0 or 1.
    """
    if block.has_single_steps and type(obs) is np.ndarray:  # takes a third of the time
        return obs[later::2].copy()
    return nested.take(obs, block.obs_rows + later)
