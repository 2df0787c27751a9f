"""Pieces that env-to-module and learner pipelines share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from runner.episodes.columns import ColumnBlock
from runner.pipelines.piece import DEFAULT_MODULE_ID, LOSS_MASK, OBS, Batch, ConnectorPiece


class AddObservationsFromEpisodesToBatch(ConnectorPiece):
    """Adds `obs`: the newest observation of each running episode (N, ...), or all observations to learn from.

    In a learner pipeline these are the observations that actions were taken on (R, ...); after
    `AddOneTsToEpisodesAndTruncate` also each chunk's last one (R + E, ...).
    """

    writes = (OBS,)

    def __call__(self, *, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        """Add the column; a column that is there already is left as it is."""
        if OBS in batch:
            return batch
        if isinstance(episodes, ColumnBlock):
            obs = episodes.columns[OBS]
            batch[OBS] = obs if LOSS_MASK in batch else obs[step_rows_of_obs(episodes)]
        elif hasattr(episodes, "current_obs"):  # the rollout buffer of an env runner
            batch[OBS] = episodes.current_obs
        else:
            for episode in episodes:
                self.add_batch_item(batch, OBS, episode.get_observations(-1), episode)
        return batch


class BatchIndividualItems(ConnectorPiece):
    """Makes arrays of the columns that pieces filled item by item; columns that are arrays stay as they are.

    Args:
        by_module: put the columns under their module's id, `{module id: {column: rows}}` (learner pipelines).
    """

    def __init__(self, by_module: bool = False) -> None:
        self._by_module = by_module

    def __call__(self, *, batch: Batch, episodes: Sequence[Any], **kwargs: Any) -> Batch:
        """Stack items in the order in which their episodes were added."""
        for column, rows in batch.items():
            if type(rows) is dict:
                items = [_padded(items, LOSS_MASK in batch) for items in rows.values()]
                batch[column] = np.stack([np.asarray(item) for chunk in items for item in chunk])
        return {DEFAULT_MODULE_ID: batch} if self._by_module else batch


class NumpyToTensor(ConnectorPiece):
    """Makes tensors on the module's device of all arrays; on the CPU without a copy."""

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self._device = torch.device(device)
        self._on_host = self._device.type == "cpu"

    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        """Convert every array, also one level down (by module)."""
        for key, value in batch.items():
            if isinstance(value, np.ndarray):
                tensor = torch.from_numpy(value)
                batch[key] = tensor if self._on_host else tensor.to(self._device)
            elif type(value) is dict:
                self(batch=value)
        return batch


def step_rows_of_obs(block: ColumnBlock) -> np.ndarray[Any, np.dtype[np.int64]]:
    """(R,) rows of the `obs` column that steps were taken on, all but each chunk's last."""
    return np.arange(block.num_rows) + np.repeat(np.arange(len(block)), block.lengths)


def _padded(items: list[Any], has_bootstrap_rows: bool) -> list[Any]:
    """A chunk's items with the last one repeated for the bootstrap row, which no loss reads."""
    return [*items, items[-1]] if has_bootstrap_rows else items
