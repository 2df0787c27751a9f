"""Connectors of the learner pipeline, from episode chunks to the columns of a train batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.episodes import nested
from runner.episodes.columns import ACTIONS, OBS, ColumnBlock
from runner.pipelines.connector import LOSS_MASK, REWARDS, STATE_OUT, TERMINATEDS, TRUNCATEDS, Batch
from runner.pipelines.connector_kinds import LearnerConnector
from runner.pipelines.requirements import Requirements

BoolArray = npt.NDArray[np.bool_]


class AddOneTsToEpisodesAndTruncate(LearnerConnector):
    """Adds a row to every chunk for its last observation, so that a value function evaluates it in the same pass.

    Adds `loss_mask` (R + E,): true at env steps, false at these bootstrap rows. All later columns have R + E rows.
    Statistics and losses ignore rows whose mask is false. The episodes themselves are not changed.
    """

    requires = Requirements(writes=(LOSS_MASK,))

    def __call__(self, *, batch: Batch, episodes: ColumnBlock, **kwargs: Any) -> Batch:
        """Add the mask."""
        mask = np.ones(episodes.num_rows + len(episodes), np.bool_)
        mask[episodes.offsets[1:] + np.arange(len(episodes))] = False
        batch[LOSS_MASK] = mask
        return batch


class AddColumnsFromEpisodesToTrainBatch(LearnerConnector):
    """Adds `actions`, `rewards`, `terminateds`, `truncateds` and every extra model output of the episodes.

    Rows are the rows of the batch: R, or R + E after `AddOneTsToEpisodesAndTruncate`. A bootstrap row repeats its
    chunk's last row with reward 0, terminated false and truncated true.

    Args:
        recorded_columns: extra model outputs in the episodes, used to check the order of the pipeline.
        ones: column -> its dtype; each is 1 in all rows if the episodes do not contain it.
    """

    requires = Requirements(writes=(ACTIONS, REWARDS, TERMINATEDS, TRUNCATEDS))

    def __init__(
        self, recorded_columns: Sequence[str] = (), ones: Mapping[str, npt.DTypeLike] = MappingProxyType({})
    ) -> None:
        recorded = (column for column in recorded_columns if column != STATE_OUT)
        writes = tuple(dict.fromkeys((*self.requires.writes, *recorded, *ones)))
        self.requires = replace(self.requires, writes=writes)
        self._ones = ones

    def __call__(self, *, batch: Batch, episodes: ColumnBlock, **kwargs: Any) -> Batch:
        """Add the columns that do not exist yet."""
        mask = batch.get(LOSS_MASK)
        if mask is not None:
            rows = np.cumsum(mask) - 1
        for name, column in episodes.columns.items():
            if name in (OBS, STATE_OUT) or name in batch:  # AddStatesFromEpisodesToBatch adds the states
                continue
            batch[name] = column if mask is None else nested.take(column, rows)
            if name == REWARDS and mask is not None:
                batch[name][~mask] = 0.0
        terminateds, truncateds = _ends_of_rows(episodes, mask)
        batch.setdefault(TERMINATEDS, terminateds)
        batch.setdefault(TRUNCATEDS, truncateds)
        for name, dtype in self._ones.items():
            if name not in batch:
                batch[name] = np.ones(len(terminateds), dtype)
        return batch


def _ends_of_rows(episodes: ColumnBlock, mask: BoolArray | None) -> tuple[BoolArray, BoolArray]:
    """Return whether each row's step terminated or truncated a chunk. With a mask, bootstrap rows are included."""
    if mask is None and episodes.has_single_steps:
        return episodes.is_terminated.copy(), episodes.is_truncated.copy()
    last_rows, num_rows = episodes.offsets[1:] - 1, episodes.num_rows
    if mask is not None:
        last_rows, num_rows = last_rows + np.arange(len(episodes)), len(mask)
    terminateds, truncateds = np.zeros(num_rows, np.bool_), np.zeros(num_rows, np.bool_)
    terminateds[last_rows] = episodes.is_terminated
    truncateds[last_rows] = episodes.is_truncated
    if mask is not None:
        truncateds[~mask] = True
    return terminateds, truncateds
