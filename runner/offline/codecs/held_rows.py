"""Rows of steps that are kept until their episode is complete."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runner.episodes import nested
from runner.episodes.columns import DEFAULT_MODULE_ID, Agents, Column, ColumnBlock
from runner.episodes.nested import Array
from runner.offline.codecs.arrow_columns import RecordedInfos

# Additional column of a block: the index of each row among the rows that the block was made from.
ROW = "\0row"
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class HeldRows:
    """R rows that are kept: their data, and the episode number of each."""

    data: dict[str, Column]  # columns of a block, "\0new_obs", "\0infos", ...
    episode: IntArray
    t: IntArray
    is_terminated: npt.NDArray[np.bool_]
    is_truncated: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.episode)

    def take(self, index: Any) -> HeldRows:
        """Return the selected rows."""
        values = {field.name: getattr(self, field.name)[index] for field in fields(self) if field.name != "data"}
        return HeldRows({name: nested.take(column, index) for name, column in self.data.items()}, **values)

    def joined_with(self, other: HeldRows) -> HeldRows:
        """Append other rows."""
        values = {
            field.name: np.concatenate((getattr(self, field.name), getattr(other, field.name)))
            for field in fields(self)
            if field.name != "data"
        }
        data = {name: nested.concatenate((column, other.data[name])) for name, column in self.data.items()}
        return HeldRows(data, **values)

    def num_bytes(self) -> int:
        """Return the memory of the data in bytes."""
        return sum(leaf.nbytes for column in self.data.values() for leaf in nested.leaves(column))


def with_infos_and_agents(block: ColumnBlock, rows: HeldRows, module_id: str | None) -> ColumnBlock:
    """Add infos, agents and env time steps to a block; its column `ROW` refers to `rows`."""
    columns = dict(block.columns)
    obs_rows = _ObsRows.of(block, columns.pop(ROW), rows)
    agents = obs_rows.agents()
    return replace(
        block,
        columns=columns,
        infos=obs_rows.infos(),
        agents=agents,
        module_id=DEFAULT_MODULE_ID if module_id is None or agents is None else module_id,
    )


@dataclass(frozen=True)
class _ObsRows:
    """The stored row that each of a block's R + E observations comes from.

    Attributes:
        block, rows: the block, and the rows that it was made from.
        row: (R + E,) index of the row.
        is_next: (R + E,) whether the observation is the row's next observation.
        first: (E,) first row of each chunk.
    """

    block: ColumnBlock
    rows: HeldRows
    row: IntArray
    is_next: npt.NDArray[np.bool_]
    first: IntArray

    @classmethod
    def of(cls, block: ColumnBlock, row: IntArray, rows: HeldRows) -> _ObsRows:
        """Construct it from the rows (R,) of the block's steps."""
        ends = block.offsets[1:]
        last = row[ends - 1]
        # If a step was dropped because its next observation is missing, its own observation is the final one.
        has_next = rows.is_terminated[last] | ("\0new_obs" in rows.data)
        obs_row = np.insert(row, ends, np.where(has_next, last, last + 1))
        is_next = np.zeros(len(obs_row), np.bool_)
        is_next[ends + np.arange(len(block))] = has_next
        return cls(block, rows, obs_row, is_next, row[block.offsets[:-1]])

    def infos(self) -> RecordedInfos | None:
        """Return the infos of all observations, or None if all are empty."""
        texts = self._values("\0infos", "\0new_infos")
        if texts is None:
            return None
        if "\0new_infos" not in self.rows.data:
            texts[self.is_next] = None
        filled = ["{}" if text is None else text for text in texts.tolist()]
        if all(text == "{}" for text in filled):
            return None
        offsets = self.block.offsets + np.arange(len(self.block) + 1)
        return RecordedInfos(
            pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(filled, pa.string()))
        )

    def agents(self) -> Agents | None:
        """Return agent and env time steps of each chunk, or None with a single agent."""
        data = self.rows.data
        if "\0agent" not in data:
            return None
        env_t = self._values("\0env_t", "\0new_env_t")
        if env_t is None:  # the agent acts in every env step
            env_t = self.rows.t[self.row] + self.is_next
        elif "\0new_env_t" not in data:
            env_t = env_t + self.is_next
        whole = data.get("\0whole")
        whole_ids = list(self.block.episode_ids) if whole is None else whole[self.first].tolist()
        return Agents(data["\0agent"][self.first].tolist(), whole_ids, env_t.astype(np.int64))

    def _values(self, name: str, next_name: str) -> Array | None:
        """Return the values under a name for all observations, using `next_name` for next observations if it exists."""
        values, following = self.rows.data.get(name), self.rows.data.get(next_name)
        if values is None:
            return None
        rows = np.asarray(values[self.row])
        if following is not None:
            rows[self.is_next] = following[self.row[self.is_next]]
        return rows
