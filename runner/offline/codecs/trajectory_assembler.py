"""Assemble tables of steps, read as a stream, to complete trajectories; only open episodes are kept.

Rows of an episode may be spread over several tables or files, mixed with other episodes, and in any order if `t` is
recorded. An episode is complete when the row with its end flag and all rows before it have been read. Without end
flags, it ends when a complete table does not contain it. Without `eps_id`, it ends with an end flag or if `t` does not
continue.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runner.episodes import nested
from runner.episodes.columns import ACTIONS, OBS, Column, ColumnBlock
from runner.episodes.nested import Array
from runner.offline.codecs.held_rows import HeldRows, IntArray, with_infos_and_agents
from runner.offline.codecs.layout import describe_column
from runner.offline.codecs.table_format import StepRows
from runner.offline.codecs.table_schema import TableSchema
from runner.offline.codecs.trajectories import ReadCounts, Spans, Steps, build_block, number_ids, rows_equal
from runner.offline.files.data_error import DataLocation, data_error

MAX_HELD_BYTES = 2**27


class TrajectoryAssembler:
    """Assembles tables, added in the order of the files, to blocks of complete trajectories.

    Args:
        schema: role of each column.
        counts: updated with the corrections made; columns that are left out of later rows are dropped.
    """

    def __init__(self, schema: TableSchema, counts: ReadCounts) -> None:
        self._counts = counts
        self._schema = schema
        self._held: HeldRows | None = None
        self._numbers: dict[Any, int] = {}  # (eps_id, agent_id) -> number
        self._keys: list[Any] = []
        self._is_closed = np.zeros(0, np.bool_)
        self._next_number = 0
        self._num_rows = 0
        self._last: tuple[int, int, bool] | None = None  # episode and t of the newest row, and whether it ends it
        self._last_agent: Any = None
        self._place = DataLocation()
        self._first: dict[str, tuple[Any, str]] = {}  # column -> shapes of a row, and their description

    def add(self, rows: StepRows, place: DataLocation) -> list[ColumnBlock]:
        """Return the trajectories that these rows complete, one block per module; `place` locates the first row.

        Raises:
            DataError: an episode continues after its end, or contains a step twice; or shapes differ from earlier rows.
        """
        if len(rows) == 0:
            return []
        self._place = place
        self._check_shapes(rows)
        if not self._schema.has_trajectories:
            return [self._single_steps(rows)]
        new = self._numbered(rows)
        held = new if self._held is None else self._joined(self._held, new)
        is_done = self._find_done(held, new)
        ready, kept = held.take(is_done), held.take(~is_done)
        self._held = kept if len(kept) else None
        return self._blocks(ready)

    def finish(self) -> list[ColumnBlock]:
        """Return the remaining episodes, whose end is not recorded."""
        rows, self._held = self._held, None
        return [] if rows is None else self._blocks(rows)

    def _check_shapes(self, rows: StepRows) -> None:
        """Check that observations and actions of a single agent have the same shapes as in the first rows."""
        if rows.agent_ids is not None:  # each agent may have different spaces
            return
        for name in (OBS, ACTIONS):
            shapes, got = _shapes(rows.columns[name]), describe_column(rows.columns[name])
            first, expected = self._first.setdefault(name, (shapes, got))
            if shapes != first:
                what, place = "rows of a column must have the same shape", self._place.of(self._schema.names[name])
                raise data_error(what, place, got=got, expected=f"{expected}, like the first row")

    # --- episodes of the rows -------------------------------------------------------------------------------------

    def _numbered(self, rows: StepRows) -> HeldRows:
        ends = rows.is_terminated | rows.is_truncated
        if rows.eps_ids is None:
            episode, t = self._by_order(rows, ends)
        else:
            episode = self._by_id(rows)
            t = np.full(len(rows), -1, np.int64) if rows.t is None else rows.t
        optional: dict[str, Column | None] = {
            "new_obs": rows.new_obs,
            "infos": rows.infos,
            "new_infos": rows.new_infos,
            "env_t": rows.env_t,
            "new_env_t": rows.new_env_t,
            "agent_id": _objects(rows.agent_ids),
            "multi_agent_episode_id": _objects(rows.multi_agent_episode_ids),
            "module_id": _objects(rows.module_ids),
        }
        recorded = {name: column for name, column in optional.items() if column is not None}
        self._num_rows += len(rows)
        return HeldRows(rows.columns, recorded, episode, t, rows.is_terminated, rows.is_truncated)

    def _joined(self, held: HeldRows, new: HeldRows) -> HeldRows:
        kept = {name: one for name, one in held.columns.items() if name not in self._counts.columns_left_out}
        held = replace(held, columns=kept)
        odd = (held.columns.keys() ^ new.columns.keys()) | (held.optional.keys() ^ new.optional.keys())
        if odd:
            raise data_error(f"only some rows have {', '.join(sorted(odd))}", self._place)
        try:
            return held.joined_with(new)
        except ValueError as error:
            raise data_error(f"rows are inconsistent with earlier rows: {error}", self._place) from None

    def _by_id(self, rows: StepRows) -> IntArray:
        assert rows.eps_ids is not None
        episodes = rows.eps_ids.dictionary_encode()
        codes: IntArray = episodes.indices.to_numpy()
        keys: list[Any] = episodes.dictionary.to_pylist()
        if rows.agent_ids is not None:
            agents = rows.agent_ids.dictionary_encode()
            codes = number_ids(codes.astype(np.int64) * len(agents.dictionary) + agents.indices.to_numpy())
            first = pa.array(np.unique(codes, return_index=True)[1])
            keys = list(zip(rows.eps_ids.take(first).to_pylist(), rows.agent_ids.take(first).to_pylist(), strict=True))
        numbers = np.array([self._number_of(key) for key in keys], np.int64)
        again = self._is_closed[numbers]
        if again.any():
            code = int(np.flatnonzero(again)[0])
            row = int(np.flatnonzero(codes == code)[0])
            raise data_error(
                f"episode {_show_key(keys[code])} continues after its end: its rows are too far apart, or two episodes "
                "have the same id",
                self._place.of(self._schema.names["eps_id"]).at(row),
                fix="use ids that are unique over all files, and keep the rows of an episode together",
            )
        episode: IntArray = numbers[codes]
        return episode

    def _number_of(self, key: Any) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._keys)
            self._keys.append(key)
            if number >= len(self._is_closed):
                self._is_closed = np.append(self._is_closed, np.zeros(max(1024, number), np.bool_))
        return number

    def _by_order(self, rows: StepRows, ends: npt.NDArray[np.bool_]) -> tuple[IntArray, IntArray]:
        """Number episodes and time steps by order: an episode starts after an end flag, or if `t` does not continue."""
        starts = np.concatenate(([self._last is None or self._last[2]], ends[:-1]))
        if rows.t is not None:
            before = np.concatenate(([rows.t[0] - 1 if self._last is None else self._last[1]], rows.t[:-1]))
            starts |= rows.t != before + 1
        self._check_agents(rows, starts)
        run = np.cumsum(starts)
        episode = run + self._next_number - 1
        self._next_number = int(episode[-1]) + 1
        if rows.t is not None:
            t = rows.t
        else:
            heads = np.flatnonzero(starts)
            first = np.concatenate(([0], heads))[run]
            offset = 0 if self._last is None else self._last[1] + 1
            t = np.arange(len(rows)) - first + np.where(run == 0, offset, 0)
        self._last = (int(episode[-1]), int(t[-1]), bool(ends[-1]))
        return episode, t

    def _check_agents(self, rows: StepRows, starts: npt.NDArray[np.bool_]) -> None:
        """Check that each episode without an id has the same agent in all rows, which interleaved agents do not."""
        if rows.agent_ids is None:
            return
        agents = np.array([self._last_agent, *rows.agent_ids.to_pylist()], object)
        changes = np.flatnonzero((agents[1:] != agents[:-1]) & ~starts)
        if len(changes):
            row = int(changes[0])
            raise data_error(
                f"the agent changes from {agents[row]} to {agents[row + 1]} within an episode",
                self._place.of(self._schema.names["agent_id"]).at(row),
                expected="a column eps_id, because the episodes of several agents alternate",
                fix="set offline.input_read_schema.eps_id=COLUMN",
            )
        self._last_agent = agents[-1]

    # --- complete episodes ----------------------------------------------------------------------------------------

    def _find_done(self, held: HeldRows, new: HeldRows) -> npt.NDArray[np.bool_]:
        """Return whether each row's episode is complete, as bools (R,)."""
        ids, row_index = np.unique(held.episode, return_inverse=True)
        ends = held.is_terminated | held.is_truncated
        has_end = np.zeros(len(ids), np.bool_)
        has_end[row_index[ends]] = True
        if self._schema.names.get("eps_id") is None:
            is_over = ids < (self._last[0] if self._last else 0)
            return np.asarray((is_over | has_end)[row_index])
        is_quiet = ~np.isin(ids, new.episode)
        if not self._schema.has_end_flags:
            is_over = is_quiet
        elif "t" in self._schema.names and (held.t >= 0).all():
            first, last = np.full(len(ids), sys.maxsize), np.full(len(ids), -1)
            np.minimum.at(first, row_index, held.t)
            np.maximum.at(last, row_index, held.t)
            is_complete = np.bincount(row_index, minlength=len(ids)) == last - first + 1
            is_over = has_end & is_complete & (first == 0)
        else:
            is_over = has_end
        if held.num_bytes() > MAX_HELD_BYTES:
            is_over = is_over | is_quiet
        self._is_closed[ids[is_over]] = True
        return np.asarray(is_over[row_index])

    # --- rows to blocks -------------------------------------------------------------------------------------------

    def _blocks(self, rows: HeldRows) -> list[ColumnBlock]:
        if not len(rows):
            return []
        rows = rows.in_order()
        modules = rows.optional.get("module_id")
        if modules is None:
            return list(self._block(rows, None))
        return [
            block
            for module_id in dict.fromkeys(modules[rows.first_rows].tolist())
            for block in self._block(rows.take(modules == module_id), module_id)
        ]

    def _block(self, rows: HeldRows, module_id: str | None) -> Iterator[ColumnBlock]:
        rows = rows.with_t()
        same = rows.episode[1:] == rows.episode[:-1]
        self._check_conflicts(rows, same)
        follows = same & (rows.t[1:] == rows.t[:-1] + 1)
        self._counts.gaps += int((same & ~follows).sum())
        new_obs = rows.optional.get("new_obs")
        if new_obs is not None and follows.any():
            following = nested.take(rows.columns["obs"], slice(1, None))
            with np.errstate(invalid="ignore"):  # NaNs may be signalling
                fits = rows_equal(nested.take(new_obs, slice(None, -1)), following)
            self._counts.breaks += int((follows & ~fits).sum())
            follows &= fits
        starts = np.flatnonzero(np.concatenate(([True], ~follows)))
        lengths = np.diff(np.append(starts, len(rows)))
        steps = Steps(rows.columns, rows.is_terminated, rows.is_truncated, new_obs)
        spans = Spans(starts, lengths, rows.t[starts], self._ids_of(rows.episode[starts]))
        block, spans = build_block(steps, spans, self._counts)
        if len(block):
            yield with_infos_and_agents(block, rows, spans, module_id)

    def _check_conflicts(self, rows: HeldRows, same: npt.NDArray[np.bool_]) -> None:
        twice = np.flatnonzero(same & (rows.t[1:] == rows.t[:-1]))
        if len(twice):
            row = int(twice[0])
            name = self._ids_of(rows.episode[row : row + 1])[0]
            what = f"step {rows.t[row]} of episode {name} occurs twice"
            raise data_error(what, self._place_of_file(), fix="use ids that are unique over all files")
        ends = (rows.is_terminated | rows.is_truncated)[:-1]
        beyond = np.flatnonzero(same & ends)
        if len(beyond):
            row = int(beyond[0])
            name = self._ids_of(rows.episode[row : row + 1])[0]
            what = f"episode {name} continues after step {rows.t[row]}, which ends it"
            raise data_error(what, self._place_of_file(), fix="set end flags only in the last row of an episode")

    def _place_of_file(self) -> DataLocation:
        return DataLocation(self._place.file)

    def _ids_of(self, episodes: IntArray) -> Sequence[str]:
        if "eps_id" not in self._schema.names:
            return [f"row-{number}" for number in episodes.tolist()]
        return [key if isinstance(key, str) else key[0] for key in (self._keys[n] for n in episodes.tolist())]

    # --- tables without trajectories ------------------------------------------------------------------------------

    def _single_steps(self, rows: StepRows) -> ColumnBlock:
        """Return each row as an episode of one step; without `new_obs`, its own observation is also the final one."""
        count = len(rows)
        obs = rows.columns["obs"]
        following = obs if rows.new_obs is None else rows.new_obs

        def interleave(before: Array, after: Array) -> Array:
            out = np.empty((2 * count, *before.shape[1:]), np.result_type(before, after))
            out[0::2], out[1::2] = before, after
            return out

        first, self._num_rows = self._num_rows, self._num_rows + count
        return ColumnBlock(
            columns={"obs": nested.map_leaves(interleave, obs, following)}
            | {name: column for name, column in rows.columns.items() if name != "obs"},
            lengths=np.ones(count, np.int64),
            is_terminated=rows.is_terminated,
            is_truncated=np.ones(count, np.bool_),
            t_started=np.zeros(count, np.int64),
            episode_ids=[f"row-{first + row}" for row in range(count)],
        )


def _shapes(column: Column) -> Any:
    """Return the shape of a row, and whether it is text, nested like the column."""
    return nested.map_leaves(lambda leaf: (leaf.shape[1:], leaf.dtype.kind in "SU"), column)


def _objects(texts: pa.Array | None) -> Array | None:
    """Return text as an array of objects, in which equal texts are one object."""
    if texts is None:
        return None
    encoded = texts.dictionary_encode()
    objects: Array = encoded.dictionary.to_numpy(zero_copy_only=False)[encoded.indices.to_numpy()]
    return objects


def _show_key(key: Any) -> str:
    return key if isinstance(key, str) else f"{key[0]} of agent {key[1]}"
