"""From rows `[T, S]` (time, slot) with gaps to the contiguous rows of a column block.

A slot is what one chain of episodes is written to: a sub-environment, or one agent in one sub-environment. Its
observations, read along time, are already the list layout of a `ColumnBlock` (one row more per episode); a gap is a
row that is no step, because the next row begins another episode. So a fragment becomes a block by one gather a column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runner.episodes import nested
from runner.episodes.columns import Array, Column

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Chunks:
    """Where the E chunks of a fragment lie, slot by slot, then along time.

    Attributes:
        slot: (E,) slot of each chunk. t_start, t_end: (E,) its first and its last step's row within the fragment.
        step_rows, obs_rows: rows of all steps (R,) and observations (R + E,) in the flattened (T * S) rows.
    """

    slot: IntArray
    t_start: IntArray
    t_end: IntArray
    step_rows: IntArray
    obs_rows: IntArray

    @classmethod
    def of(cls, is_step: BoolArray) -> Chunks:
        """Return the chunks of (T, S) rows: each run of steps without a gap."""
        is_start, is_end = is_step.copy(), is_step.copy()
        is_start[1:] &= ~is_step[:-1]
        is_end[:-1] &= ~is_step[1:]
        num_steps = len(is_step)
        slot, t_end = np.divmod(np.flatnonzero(is_end.T), num_steps)
        t_start = np.flatnonzero(is_start.T) % num_steps
        has_obs = np.zeros((num_steps + 1, is_step.shape[1]), np.bool_)
        has_obs[:-1] = is_step
        has_obs[1:] |= is_end
        return cls(slot, t_start, t_end, _slot_major_rows(is_step), _slot_major_rows(has_obs))

    @property
    def lengths(self) -> IntArray:
        """The steps (E,) of each chunk."""
        return self.t_end - self.t_start + 1


def _slot_major_rows(mask: BoolArray) -> IntArray:
    """Return the flat (T * S) row numbers of a (T, S) mask's true entries, ordered by slot, then time."""
    slot, t = np.divmod(np.flatnonzero(mask.T), mask.shape[0])
    rows: IntArray = t * mask.shape[1] + slot
    return rows


@dataclass(frozen=True)
class PastRows:
    """The lookback of a cut fragment: `columns` are (H, S, ...), the newest past step last."""

    columns: Mapping[str, Column]
    slot: IntArray
    num_before: IntArray

    def num_steps_before(self, chunk: int) -> int:
        """Return how many steps before the chunk can be seen."""
        return int(self.num_before[chunk])

    def columns_before(self, chunk: int) -> Mapping[str, Column]:
        """Return these steps, column by column."""
        rows = slice(-int(self.num_before[chunk]), None)
        return {name: nested.take(column, (rows, self.slot[chunk])) for name, column in self.columns.items()}


def flat_rows(column: Column, rows: slice, flat_index: IntArray) -> Column:
    """Return the rows of the (T, S, ...) arrays `column[rows]` by their index into (T * S)."""
    return nested.map_leaves(lambda array: array[rows].reshape(-1, *array.shape[2:])[flat_index], column)


def grown(column: Column, more: int) -> Column:
    """Return the column with `more` rows of zeros at its end."""

    def grow(array: Array) -> Array:
        return np.concatenate((array, np.zeros((more, *array.shape[1:]), array.dtype)))

    return nested.map_leaves(grow, column)


def copied(column: Column) -> Column:
    """Return a copy of every array."""
    return nested.map_leaves(np.copy, column)
