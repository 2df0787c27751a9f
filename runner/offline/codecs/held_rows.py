"""Rows of steps that are kept until their episode is complete."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runner.episodes import nested
from runner.episodes.columns import DEFAULT_MODULE_ID, Agents, Column, ColumnBlock, row_ranges
from runner.episodes.nested import Array
from runner.offline.codecs.arrow_columns import RecordedInfos
from runner.offline.codecs.trajectories import Spans

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class HeldRows:
    """R rows that are kept.

    Attributes:
        columns: `obs`, `actions`, `rewards`, extra model outputs.
        optional: other columns of the table that are recorded: `new_obs`, `infos`, `agent_id`, ...
        episode: (R,) number of the episode.
        t: (R,) time step within the episode, or -1 if it is not recorded.
        is_terminated, is_truncated: (R,) whether the step ended the episode.
    """

    columns: dict[str, Column]
    optional: dict[str, Column]
    episode: IntArray
    t: IntArray
    is_terminated: npt.NDArray[np.bool_]
    is_truncated: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.episode)

    def take(self, index: Any) -> HeldRows:
        """Return the selected rows."""
        return HeldRows(**{field.name: nested.take(getattr(self, field.name), index) for field in fields(self)})

    def joined_with(self, other: HeldRows) -> HeldRows:
        """Append other rows. Raises `ValueError` if their columns have another structure or shape."""
        pairs = {field.name: (getattr(self, field.name), getattr(other, field.name)) for field in fields(self)}
        return HeldRows(**{name: nested.concatenate(pair) for name, pair in pairs.items()})

    @property
    def first_rows(self) -> IntArray:
        """First row of each episode, if the rows are in order."""
        return np.flatnonzero(np.concatenate(([True], self.episode[1:] != self.episode[:-1])))

    def in_order(self) -> HeldRows:
        """Return the rows sorted by episode and time step."""
        is_sorted = self.episode[1:] > self.episode[:-1]
        is_sorted |= (self.episode[1:] == self.episode[:-1]) & ((self.t[1:] >= self.t[:-1]) | (self.t[1:] < 0))
        return self if is_sorted.all() else self.take(np.lexsort((self.t, self.episode)))

    def with_t(self) -> HeldRows:
        """Return the rows with time steps numbered by order if they are not recorded."""
        if (self.t >= 0).all():
            return self
        first_rows = self.first_rows
        lengths = np.diff(np.append(first_rows, len(self)))
        return replace(self, t=np.arange(len(self)) - np.repeat(first_rows, lengths))

    def num_bytes(self) -> int:
        """Return the memory of the columns in bytes."""
        return sum(leaf.nbytes for leaf in nested.leaves((self.columns, self.optional)))


def with_infos_and_agents(block: ColumnBlock, rows: HeldRows, spans: Spans, module_id: str | None) -> ColumnBlock:
    """Add infos, agents and env time steps to a block, whose trajectories are these spans of `rows`."""
    obs_rows = _ObsRows.of(block, rows, spans)
    agents = obs_rows.agents(block, spans)
    return replace(
        block,
        infos=obs_rows.infos(block),
        agents=agents,
        module_id=DEFAULT_MODULE_ID if module_id is None or agents is None else module_id,
    )


@dataclass(frozen=True)
class _ObsRows:
    """The row that each of a block's R + E observations comes from.

    Attributes:
        rows: the rows that the block was made from.
        row: (R + E,) index of the row.
        is_next: (R + E,) whether the observation follows the row's step.
    """

    rows: HeldRows
    row: IntArray
    is_next: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, block: ColumnBlock, rows: HeldRows, spans: Spans) -> _ObsRows:
        """Find the rows. A final observation follows the last step, unless it belongs to a step that was dropped."""
        ends = block.offsets[1:]
        row = np.insert(row_ranges(spans.starts, block.lengths), ends, spans.last)
        is_next = np.zeros(len(row), np.bool_)
        is_next[ends + np.arange(len(block))] = rows.is_terminated[spans.last] | ("new_obs" in rows.optional)
        return cls(rows, row, is_next)

    def infos(self, block: ColumnBlock) -> RecordedInfos | None:
        """Return the infos of all observations, or None if all are empty."""
        texts = self._values("infos", "new_infos")
        if texts is None:
            return None
        if "new_infos" not in self.rows.optional:
            texts[self.is_next] = None
        filled = ["{}" if text is None else text for text in texts.tolist()]
        if all(text == "{}" for text in filled):
            return None
        offsets = block.offsets + np.arange(len(block) + 1)
        return RecordedInfos(
            pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(filled, pa.string()))
        )

    def agents(self, block: ColumnBlock, spans: Spans) -> Agents | None:
        """Return agent and env time steps of each chunk, or None with a single agent."""
        recorded = self.rows.optional
        if "agent_id" not in recorded:
            return None
        env_t = self._values("env_t", "new_env_t")
        if env_t is None:  # the agent acts in every env step
            env_t = self.rows.t[self.row] + self.is_next
        elif "new_env_t" not in recorded:
            env_t = env_t + self.is_next
        ids = recorded.get("multi_agent_episode_id")
        env_episode_ids = list(block.episode_ids) if ids is None else ids[spans.starts].tolist()
        return Agents(recorded["agent_id"][spans.starts].tolist(), env_episode_ids, env_t.astype(np.int64))

    def _values(self, name: str, next_name: str) -> Array | None:
        """Return the values of a column for all observations, from `next_name` if they follow a step and it exists."""
        values, following = self.rows.optional.get(name), self.rows.optional.get(next_name)
        if values is None:
            return None
        of_obs = np.asarray(values[self.row])
        if following is not None:
            of_obs[self.is_next] = following[self.row[self.is_next]]
        return of_obs
