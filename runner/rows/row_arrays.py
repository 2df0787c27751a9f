"""The memory of a row store: preallocated arrays `[rows, S]` that grow when they are full."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from runner.episodes import nested
from runner.episodes.columns import ACTIONS, REWARDS, Column
from runner.rows.array_namespace import Array, ArrayNamespace


class RowArrays:
    """Arrays (rows, S, ...) of equal length. Row t of a step column belongs to the step taken on row t of `obs`.

    Args:
        xp: array namespace.
        num_rows, num_slots: size of the arrays; S slots.
        blank_obs, blank_action: items with the structure, shapes and dtypes of their spaces.
        labels: names of further int64 arrays (rows, S).

    Attributes:
        obs: observations as the environment returned them.
        written_obs: observations that connectors wrote instead, or None if none did.
        steps: step columns; further columns are added with the first outputs.
        is_gap: (rows, S) bool, whether the row is not a step because the next row begins another episode.
        is_terminated, is_truncated: (rows, S) bool, how the step ended its episode.
    """

    def __init__(
        self,
        xp: ArrayNamespace,
        num_rows: int,
        num_slots: int,
        blank_obs: Any,
        blank_action: Any,
        labels: tuple[str, ...] = (),
    ) -> None:
        self.xp = xp
        self.num_rows = num_rows
        leading = (num_rows, num_slots)

        def blank(leaf: Any) -> Array:
            return xp.zeros((*leading, *np.shape(leaf)), np.asarray(leaf).dtype)

        self.obs: Column = nested.map_leaves(blank, blank_obs)
        self.written_obs: Column | None = None
        self.steps: dict[str, Column] = {
            ACTIONS: nested.map_leaves(blank, blank_action),
            REWARDS: xp.zeros(leading, np.float32),
        }
        self.knows_outputs = False
        self.is_gap, self.is_terminated, self.is_truncated = (xp.zeros(leading, np.bool_) for _ in range(3))
        self.labels: dict[str, Array] = {name: xp.zeros(leading, np.int64) for name in labels}

    @property
    def held_obs(self) -> Column:
        """The observations that the episodes hold: the environment's, or those written by a connector."""
        return self.obs if self.written_obs is None else self.written_obs

    def write_obs(self, at: Any, obs: Column) -> None:
        """Write observations (K, ...) of the episodes to the rows at an index."""
        if self.written_obs is None:
            self.written_obs = self._column_for(obs)
        self.xp.assign(self.written_obs, at, obs)

    def add_columns(self, outputs: Mapping[str, Column]) -> None:
        """Add step columns for the outputs (K, ...) that do not have one."""
        for name, values in outputs.items():
            if name not in self.steps:
                self.steps[name] = self._column_for(values)
        self.knows_outputs = True

    def _column_for(self, values: Column) -> Column:
        leading = tuple(self.is_gap.shape)
        return nested.map_leaves(lambda leaf: self.xp.zeros((*leading, *leaf.shape[1:]), leaf.dtype), values)

    # -- all arrays together ---------------------------------------------------------------------------------------

    def reserve(self, num_rows: int) -> None:
        """Allocate space for this many rows."""
        if num_rows > self.num_rows:
            self._replace(lambda array: self._padded(array, num_rows - self.num_rows, 0))
            self.num_rows = num_rows

    def add_slots(self, more: int) -> None:
        """Allocate space for more slots after the existing ones."""
        self._replace(lambda array: self._padded(array, more, 1))

    def _padded(self, array: Array, more: int, axis: int) -> Array:
        shape = list(array.shape)
        shape[axis] = more
        return self.xp.concatenate((array, self.xp.zeros(tuple(shape), array.dtype)), axis)

    def _replace(self, make: Callable[[Array], Array]) -> None:
        self.obs = nested.map_leaves(make, self.obs)
        if self.written_obs is not None:
            self.written_obs = nested.map_leaves(make, self.written_obs)
        self.steps = {name: nested.map_leaves(make, column) for name, column in self.steps.items()}
        self.is_gap, self.is_terminated, self.is_truncated = map(
            make, (self.is_gap, self.is_terminated, self.is_truncated)
        )
        self.labels = {name: make(array) for name, array in self.labels.items()}

    def move_to_start(self, source: Any, num_rows: int, has_steps: bool) -> None:
        """Move the rows at an index, `num_rows` of each slot, to the start; flags of ended episodes are not moved.

        Args:
            has_steps: whether one of these rows has a step, or a part of one.
        """
        columns = [self.obs, self.is_gap, *self.labels.values()]
        if has_steps:
            columns += self.steps.values()
        if self.written_obs is not None:
            columns.append(self.written_obs)
        for column in columns:
            moved = nested.map_leaves(self.xp.copy, nested.take(column, source))  # source and target may overlap
            nested.assign(column, slice(num_rows), moved)

    # -- state -----------------------------------------------------------------------------------------------------

    def saved(self, column: Column, num_rows: int) -> Column:
        """Return copies of the first rows as numpy arrays."""
        return nested.map_leaves(lambda array: np.array(self.xp.to_host(array[:num_rows])), column)

    def get_state(self, num_rows: int) -> dict[str, Any]:
        """Return the first rows of observations and labels as numpy arrays."""
        labels = {name: self.saved(array, num_rows) for name, array in self.labels.items()}
        written_obs = None if self.written_obs is None else self.saved(self.written_obs, num_rows)
        return {"obs": self.saved(self.obs, num_rows), "written_obs": written_obs, **labels}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`, with step columns in `steps`."""
        written_obs = state["written_obs"]
        self.obs = self._loaded(state["obs"])
        self.written_obs = None if written_obs is None else self._loaded(written_obs)
        self.steps = {name: self._loaded(column) for name, column in state["steps"].items()}
        self.labels = {name: self._loaded(state[name]) for name in self.labels}
        self.knows_outputs = False

    def _loaded(self, column: Column) -> Column:
        def load(array: Array) -> Array:
            return self._padded(self.xp.from_host(np.asarray(array)), self.num_rows - len(array), 0)

        return nested.map_leaves(load, column)
