"""Connectors for optional columns of a train batch: infos, next observations, returns to go."""

from __future__ import annotations

from typing import Any

import numpy as np

from runner.episodes import nested
from runner.episodes.columns import ColumnBlock
from runner.pipelines.advantages import suffix_sums
from runner.pipelines.common_connectors import obs_of_steps
from runner.pipelines.connector import LOSS_MASK, OBS, REWARDS, Batch
from runner.pipelines.connector_kinds import LearnerConnector
from runner.pipelines.observation_connector import observation_rows
from runner.pipelines.requirements import Requirements

INFOS = "infos"
NEXT_OBS = "new_obs"
RETURNS_TO_GO = "returns_to_go"


class AddInfosFromEpisodesToTrainBatch(LearnerConnector):
    """Adds `infos`: a list of dicts, the info of each row's observation, or {} if there was none.

    It has R entries, or R + E after `AddOneTsToEpisodesAndTruncate`.
    """

    requires = Requirements(writes=(INFOS,))

    def __call__(self, *, batch: Batch, episodes: ColumnBlock, **kwargs: Any) -> Batch:
        """Add the column, which stays a list until the end."""
        num_last = 1 if LOSS_MASK in batch else 0
        rows: list[dict[str, Any]] = []
        for chunk, length in enumerate(episodes.lengths.tolist()):
            num_rows = length + num_last
            infos = episodes.infos.rows_of(chunk, num_rows) if episodes.infos else None
            rows += [{} for _ in range(num_rows)] if infos is None else infos
        batch[INFOS] = rows
        return batch


class AddNextObservationsFromEpisodesToTrainBatch(LearnerConnector):
    """Adds `new_obs` (rows, ...): the observation after each row's step, nested like `obs`.

    After `AddOneTsToEpisodesAndTruncate` these are the rows of `obs`, as earlier connectors have changed them, shifted
    by one; a bootstrap row repeats its own observation. Otherwise they are taken from the episodes.
    """

    requires = Requirements(reads=(OBS,), writes=(NEXT_OBS,), needs_next_obs=True)

    def __init__(self) -> None:
        self._is_checked = False

    def __call__(self, *, batch: Batch, episodes: ColumnBlock, **kwargs: Any) -> Batch:
        """Add the column.

        Raises:
            RuntimeError: a connector has changed `obs`, and there are no bootstrap rows for the last observations.
        """
        mask = batch.get(LOSS_MASK)
        if mask is not None:
            obs = observation_rows(type(self).__name__, batch, episodes)
            batch[NEXT_OBS] = nested.take(obs, np.arange(len(mask)) + mask)
        else:
            obs = episodes.columns[OBS]
            if not self._is_checked:
                self._check_unchanged(batch, episodes, obs_of_steps(obs, episodes))
            batch[NEXT_OBS] = obs_of_steps(obs, episodes, later=1)
        return batch

    def _check_unchanged(self, batch: Batch, episodes: ColumnBlock, held: Any) -> None:
        if not nested.equal(observation_rows(type(self).__name__, batch, episodes), held):
            raise RuntimeError(
                "AddNextObservationsFromEpisodesToTrainBatch: a connector has changed column 'obs', and the "
                "last observation of each chunk is missing; prepend AddOneTsToEpisodesAndTruncate"
            )
        self._is_checked = True


class ComputeReturnsToGo(LearnerConnector):
    """Adds `returns_to_go` (rows,) float32: G[t] = r[t] + gamma G[t + 1] to the end of the chunk, without bootstrap.

    Bootstrap rows are 0. Place it after connectors that change rewards and before `AgentToModuleMapping`.

    Args:
        gamma: discount factor.
    """

    requires = Requirements(reads=(REWARDS,), writes=(RETURNS_TO_GO,), needs_trajectories=True, needs_all_rows=True)

    def __init__(self, gamma: float) -> None:
        self._gamma = gamma

    def __call__(self, *, batch: Batch, episodes: ColumnBlock, **kwargs: Any) -> Batch:
        """Add the column."""
        rewards = batch.get(REWARDS)
        if not isinstance(rewards, np.ndarray):
            raise TypeError(
                f"ComputeReturnsToGo needs column 'rewards' as an array, got {type(rewards).__name__}; place it after "
                "AddColumnsFromEpisodesToTrainBatch and before AgentToModuleMapping"
            )
        mask = batch.get(LOSS_MASK)
        continues = ~episodes.last_row_mask() if mask is None else mask
        terms = rewards if mask is None else np.where(mask, rewards, 0.0)
        discounts = self._gamma * continues.astype(np.float64)
        sums = suffix_sums(terms.astype(np.float64), discounts, int(episodes.lengths.max(initial=0)))
        batch[RETURNS_TO_GO] = sums.astype(np.float32)
        return batch
