"""Fragments: the columns of the chunks that were cut from a store, and the steps before them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runner.episodes import nested
from runner.episodes.columns import OBS, Column, ColumnBlock
from runner.rows.array_namespace import Array
from runner.rows.chunks import Chunks, PastRows, flat_rows, flattened
from runner.rows.row_arrays import RowArrays

# Adds columns that are computed from the given columns.
AddColumns = Callable[[dict[str, Column]], None]


@dataclass(eq=False)  # one per sample; frozen dataclasses take longer to create
class Fragment:
    """The chunks that were cut from a store.

    Attributes:
        block: E chunks of episodes; its columns are in the store's array namespace.
        raw_obs: the block's observations as the environment returned them.
        chunks: positions of the chunks in the store.
        episode_numbers: number (E,) of each chunk's episode within its slot.
    """

    block: ColumnBlock
    raw_obs: Column
    chunks: Chunks
    episode_numbers: npt.NDArray[np.int64]


def columns_of(arrays: RowArrays, chunks: Chunks, rows: slice) -> tuple[dict[str, Column], Column]:
    """Return the columns of a fragment's chunks, and their observations as the environment returned them.

    Args:
        rows: the T rows of the fragment.
    """
    obs_rows = slice(rows.start, rows.stop + 1)
    raw_obs = flat_rows(arrays.obs, obs_rows, chunks.obs_rows)
    is_raw = arrays.written_obs is None
    columns = {OBS: raw_obs if is_raw else flat_rows(arrays.written_obs, obs_rows, chunks.obs_rows)}
    columns |= {name: flat_rows(column, rows, chunks.step_rows) for name, column in arrays.steps.items()}
    return columns, raw_obs


def lookback_of(
    arrays: RowArrays, chunks: Chunks, t_started: Array, num_lookback: int, complete: AddColumns
) -> PastRows | None:
    """Return up to H steps before each chunk, which are in the first H rows; None if no chunk has past steps.

    Args:
        t_started: time step (E,) at which each chunk starts, 0 if it is the first of its episode.
        num_lookback: H.
        complete: adds columns.
    """
    if num_lookback == 0:
        return None
    xp = arrays.xp
    num_before = xp.to_host(t_started.clip(max=num_lookback))
    if not num_before.any():
        return None
    past = {OBS: arrays.held_obs, **arrays.steps}
    rows = {
        name: nested.map_leaves(lambda array: xp.copy(flattened(array[:num_lookback])), column)
        for name, column in past.items()
    }
    complete(rows)

    def unflat(array: Array) -> Array:
        return array.reshape(num_lookback, -1, *array.shape[1:])

    columns = {name: nested.map_leaves(unflat, column) for name, column in rows.items()}
    return PastRows(columns, xp.to_host(chunks.slot), num_before)
