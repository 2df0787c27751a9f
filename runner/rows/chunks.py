"""Convert rows `[T, S]` (time, slot) with gaps to the contiguous rows of a column block.

Each slot holds a sequence of episodes: of a sub-environment, or of one agent in one sub-environment. Read along time,
its observations already have the layout of a `ColumnBlock` (one more row per episode). A gap is a row without a step,
because the next row begins another episode. So a fragment becomes a block by one gather per column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from runner.episodes import nested
from runner.episodes.columns import Column, Lookback
from runner.fast.lean_pickle import LeanPickle
from runner.rows.array_namespace import Array, ArrayNamespace

IntArray = npt.NDArray[np.int64]


@dataclass(eq=False)  # one per sample; frozen dataclasses take longer to create
class Chunks:
    """Positions of the E chunks of a fragment, slot by slot, then along time; int64 arrays of the store's namespace.

    Attributes:
        num_steps: T.
        slot: slot (E,) of each chunk.
        t_start, t_end: rows (E,) of each chunk's first and last step within the fragment.
        step_rows, obs_rows: rows of all steps (R,) and observations (R + E,) in the flattened (T * S) rows.
    """

    num_steps: int
    slot: Array
    t_start: Array
    t_end: Array
    step_rows: Array
    obs_rows: Array

    @classmethod
    def of(cls, is_step: Array, xp: ArrayNamespace) -> Chunks:
        """Return the chunks of (T, S) rows: each run of steps without a gap."""
        return without_gaps(*is_step.shape, xp) if bool(is_step.all()) else _found_in(is_step, xp)

    def __len__(self) -> int:
        return len(self.slot)

    @property
    def lengths(self) -> Array:
        """The steps (E,) of each chunk."""
        return self.t_end - self.t_start + 1


@lru_cache(maxsize=64)
def without_gaps(num_steps: int, num_slots: int, xp: ArrayNamespace) -> Chunks:
    """Return one chunk of all steps for each slot; cached because short fragments repeat the same shapes."""
    return _found_in(~xp.zeros((num_steps, num_slots), bool), xp)


def _found_in(is_step: Array, xp: ArrayNamespace) -> Chunks:
    num_steps, num_slots = is_step.shape
    has_obs = xp.zeros((num_steps + 1, num_slots), is_step.dtype)
    has_obs[:-1] = is_step
    has_obs[1:] |= is_step
    is_start, is_end = xp.copy(is_step), xp.copy(is_step)
    is_start[1:] &= ~is_step[:-1]
    is_end[:-1] &= ~is_step[1:]
    slot, t_end = xp.divmod(xp.flatnonzero(is_end.T), num_steps)
    t_start = xp.flatnonzero(is_start.T) % num_steps
    return Chunks(num_steps, slot, t_start, t_end, _slot_major_rows(is_step, xp), _slot_major_rows(has_obs, xp))


def _slot_major_rows(mask: Array, xp: ArrayNamespace) -> Array:
    """Return the flat (T * S) row numbers of a (T, S) mask's true entries, ordered by slot, then time."""
    slot, t = xp.divmod(xp.flatnonzero(mask.T), mask.shape[0])
    return t * mask.shape[1] + slot


def flat_rows(column: Column, rows: slice, flat_index: Array) -> Column:
    """Return the rows of the (T, S, ...) arrays `column[rows]` by their index into (T * S)."""
    return nested.map_leaves(lambda array: flattened(array[rows])[flat_index], column)


def flattened(array: Array) -> Array:
    """Return the rows of a (T, S, ...) array as (T * S, ...)."""
    num_steps, num_slots, *shape = array.shape
    return array.reshape(num_steps * num_slots, *shape)


@dataclass(frozen=True)
class PastRows(LeanPickle, Lookback):
    """The lookback of a cut fragment: `columns` are (H, S, ...), the newest past step last.

    Attributes:
        slot, num_before: slot of each chunk (E,), and its number of visible past steps (E,); numpy arrays.
    """

    VECTOR_DTYPES: ClassVar[Mapping[str, Any]] = {"slot": np.int64, "num_before": np.int64}

    columns: Mapping[str, Column]
    slot: IntArray
    num_before: IntArray

    def columns_before(self, chunk: int) -> Mapping[str, Column]:
        """Return the past steps of a chunk as columns."""
        rows = slice(-int(self.num_before[chunk]), None)
        return {name: nested.take(column, (rows, int(self.slot[chunk]))) for name, column in self.columns.items()}

    def rows_before(self, column: str, chunks: IntArray, steps_back: IntArray) -> Column:
        """Return rows (K, ...) of a column by one gather."""
        return nested.take(self.columns[column], (-steps_back, self.slot[chunks]))
