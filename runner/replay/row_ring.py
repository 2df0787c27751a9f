"""A ring of rows: the newest observations of many episodes and the steps taken on them, stored by column.

A row holds an observation and, as soon as it is known, the step taken on it. Rows are numbered from 0 in the order of
their observations. Row r is at position r % capacity, where it replaces row r - capacity. Each row knows the distance
to its successor in the same episode. So chunks of any number of sub-environments, agents and simulators may alternate,
and every observation is stored once. Next observations and n-step returns are computed when rows are sampled. If
connectors look back, each row also knows the distance to its predecessor.

Dimension letters: C capacity, R env steps, E episode chunks, B sampled rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from runner.config.errors import Problem, RunFailure
from runner.episodes import nested
from runner.episodes.columns import DEFAULT_MODULE_ID, OBS, REWARDS, Column, ColumnBlock, LookbackRows
from runner.segments import Segment, SegmentFile, read_ahead

Rows = npt.NDArray[np.int64]

# Column of sampled transitions: number of steps in the discounted sum of rewards.
N_STEP = "n_step"

# Distance to a predecessor that is not held: beyond the oldest row of any ring.
_GONE = np.iinfo(np.int32).max
# A checkpoint writes the segments that have changed, and links to the files of the others.
MOST_SEGMENTS, LEAST_ROWS_OF_SEGMENT = 512, 1024

# How the step on a row ended; rows whose step is pending, and last observations of episodes, do not have a step.
NO_STEP, CONTINUES, TERMINATED, TRUNCATED = range(4)


@dataclass(frozen=True)
class NStepRows:
    """The beginnings and ends of n-step transitions.

    Attributes:
        first: row (B,) of the observation that was acted on.
        last: row (B,) of the last step that counts.
        num_steps: (B,) int64, 1 to n; below n if the episode ends or its next step is not known yet.
    """

    first: Rows
    last: Rows
    num_steps: Rows


@dataclass(frozen=True)
class PrecedingRows:
    """The held rows before some rows.

    Attributes:
        rows: (B, K + 1) the row itself, its predecessor, and so on; the earliest one is repeated if there are fewer.
        num_before: number (B,) of held predecessors, at most K.
        is_cut: (B,) whether the next predecessor has left the ring or was never in it; false at an episode's start.
    """

    rows: Rows
    num_before: Rows
    is_cut: npt.NDArray[np.bool_]


class _ChunkIds(Sequence[str]):
    """Ids of sampled chunks, made on demand; they also differ for a row that was drawn twice.

    Args:
        first: first row (B,) of each chunk.
    """

    def __init__(self, first: Rows) -> None:
        self._first = first

    def __len__(self) -> int:
        return len(self._first)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        numbers = range(len(self))[index]
        return (
            [self[number] for number in numbers]
            if isinstance(numbers, range)
            else f"row-{self._first[numbers]}-{numbers}"
        )


class RowRing:
    """Holds the newest C rows of episode chunks.

    A chunk with `t_started` > 0 continues the episode of the same id: its first observation is the last one held of
    this episode.

    Args:
        capacity: C; the last observation of an episode, which does not have a step, also takes a row.
        module_id: id of the module that chose the actions.
        num_lookback: steps to sample before a chunk. A chunk only begins where this many are held, or all since its
            episode's start; `t_started` of the chunk is their number.

    Attributes:
        columns: name -> arrays (C, ...), nested like the blocks' columns; empty before the first block.
        num_written: number of rows written so far.
        num_env_steps: number of env steps held.
    """

    def __init__(self, capacity: int, module_id: str = DEFAULT_MODULE_ID, num_lookback: int = 0) -> None:
        self.capacity = capacity
        self.module_id = module_id
        self.num_lookback = num_lookback
        self.columns: dict[str, Column] = {}
        self.num_written = 0
        self.num_env_steps = 0
        self._ending = np.zeros(capacity, np.uint8)
        self._to_successor = np.zeros(capacity, np.int32)
        # Zero for the first step of an episode; empty without lookback.
        self._to_predecessor = np.zeros(capacity if num_lookback else 0, np.int32)
        self._waiting: dict[str, tuple[int, int]] = {}  # episode id -> row and time step of its newest observation
        self._most_waiting = 64
        self._num_exported = 0  # `num_written` at the newest `get_state`
        self._changed_rows: list[Rows] = []  # earlier rows whose steps have been written since then
        self._rows_of_segment = max(LEAST_ROWS_OF_SEGMENT, -(-capacity // MOST_SEGMENTS))
        self._files: list[SegmentFile] = []  # files of the segments in use

    def __len__(self) -> int:
        """Return the number of rows held."""
        return min(self.num_written, self.capacity)

    @property
    def oldest(self) -> int:
        """The number of the oldest row held."""
        return max(0, self.num_written - self.capacity)

    def place(self, rows: Rows) -> Rows:
        """Return the positions of rows in the arrays."""
        return rows % self.capacity

    def row_at(self, places: Rows) -> Rows:
        """Return the rows at these positions of the arrays."""
        return self.oldest + (places - self.oldest) % self.capacity

    @property
    def num_bytes(self) -> int:
        """The memory of the arrays in bytes, most of which the first block allocates."""
        arrays = [leaf for column in self.columns.values() for leaf in nested.leaves(column)]
        return sum(array.nbytes for array in (*arrays, self._ending, self._to_successor, self._to_predecessor))

    # -- writing -----------------------------------------------------------------------------------------------------

    def add(self, block: ColumnBlock) -> Rows:
        """Write the chunks of a block.

        Returns:
            The rows (R,) of its env steps; rows before `oldest` are not held.

        Raises:
            RunFailure: the columns differ from earlier blocks.
        """
        if self.columns and self.columns.keys() != block.columns.keys():
            what = "the columns of new experiences differ from the columns in the replay buffer"
            raise RunFailure(
                Problem(what, "algorithm.replay_buffers", ", ".join(block.columns), ", ".join(self.columns))
            )
        if not self.columns:
            self.allocate(block.columns)
        if block.num_rows == len(block) == 1:
            return self._add_step(block)
        rows, is_new = self._rows_of_observations(block)
        end = self.num_written + int(np.count_nonzero(is_new))
        new = np.flatnonzero(is_new)[-self.capacity :]
        self._write_observations(block.columns[OBS], new, end)
        if self.num_lookback:
            self._link_back(block, rows, new)
        obs_rows = block.obs_rows
        rows_of_steps, successors = rows[obs_rows], rows[obs_rows + 1]
        ending = np.full(block.num_rows, CONTINUES, np.uint8)
        last_steps = block.offsets[1:] - 1
        ending[last_steps[block.is_terminated]] = TERMINATED
        ending[last_steps[block.is_truncated & ~block.is_terminated]] = TRUNCATED
        self._write_steps(block.columns, rows_of_steps, successors, ending)
        return rows_of_steps

    def _add_step(self, block: ColumnBlock) -> Rows:
        """Write a chunk of one step; arrays of one row each would take ten times longer."""
        obs, id_, t_started = block.columns[OBS], block.episode_ids[0], int(block.t_started[0])
        row, t = self._waiting.pop(id_, (-1, -1))
        if t != t_started or row < self.oldest:
            row = self._append(obs, 0, _GONE if t_started else 0)
        successor = self._append(obs, 1, self.num_written - row)
        is_terminated, is_truncated = bool(block.is_terminated[0]), bool(block.is_truncated[0])
        if not (is_terminated or is_truncated):
            self._wait_at(id_, successor, t_started + 1)
        rows = np.array([row])
        if row < self.oldest:
            return rows
        place = row % self.capacity
        self._ending[place] = TERMINATED if is_terminated else TRUNCATED if is_truncated else CONTINUES
        self._to_successor[place] = successor - row
        for name, targets in self.columns.items():
            if name != OBS:
                _assign_row(targets, place, block.columns[name], 0)
        self.num_env_steps += 1
        if row < self._num_exported:
            self._changed_rows.append(rows)
        return rows

    def _append(self, obs: Column, number: int, to_predecessor: int) -> int:
        """Write the observation with this number to the next row; return the row."""
        row = self.num_written
        place = row % self.capacity
        self.num_env_steps -= int(self._ending[place] != NO_STEP)
        self._ending[place] = NO_STEP
        _assign_row(self.columns[OBS], place, obs, number)
        if self.num_lookback:
            self._to_predecessor[place] = to_predecessor
        self.num_written += 1
        return row

    def allocate(self, columns: Mapping[str, Column]) -> None:
        """Allocate arrays for such columns."""
        self.columns = {name: nested.map_leaves(self._like, column) for name, column in columns.items()}

    def _like(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.zeros((self.capacity, *column.shape[1:]), column.dtype)

    def _rows_of_observations(self, block: ColumnBlock) -> tuple[Rows, npt.NDArray[np.bool_]]:
        """Return the row of each observation (R + E,), and whether it is new; remember episodes that may continue."""
        is_new = np.ones(block.num_rows + len(block), np.bool_)
        continued, known = [], []
        continues = (~(block.is_terminated | block.is_truncated)).tolist()
        first, end = 0, self.num_written  # the chunk's first observation, and the end of the rows written so far
        for id_, t_started, length, is_open in zip(
            block.episode_ids, block.t_started.tolist(), block.lengths.tolist(), continues, strict=True
        ):
            row, t = self._waiting.pop(id_, (-1, -1))
            is_known = t == t_started and row >= self.oldest  # no chunk between the two is missing
            if is_known:
                continued.append(first)
                known.append(row)
            first, end = first + length + 1, end + length + (not is_known)
            if is_open:
                self._wait_at(id_, end - 1, t_started + length)
        is_new[continued] = False
        rows = self.num_written + np.cumsum(is_new) - 1
        rows[continued] = known
        return rows, is_new

    def _write_observations(self, obs: Column, numbers: Rows, end: int) -> None:
        """Write the observations with these numbers, at most C, to rows up to `end`."""
        first = (end - len(numbers)) % self.capacity
        until_seam = min(len(numbers), self.capacity - first)
        targets = self.columns[OBS]
        for place, part in ((first, numbers[:until_seam]), (0, numbers[until_seam:])):
            places = slice(place, place + len(part))
            self.num_env_steps -= int(np.count_nonzero(self._ending[places]))
            self._ending[places] = NO_STEP
            nested.map_leaves(lambda target, leaf, p=places, n=part: leaf.take(n, 0, target[p], "clip"), targets, obs)
        self.num_written = end

    def _link_back(self, block: ColumnBlock, rows: Rows, new: Rows) -> None:
        """Write the distances to the predecessors of the new observations, which have these numbers."""
        distances = np.diff(rows, prepend=0)
        distances[block.first_obs_rows] = np.where(block.t_started > 0, _GONE, 0)
        self._to_predecessor[self.place(rows[new])] = distances[new]

    def _write_steps(self, columns: Mapping[str, Column], rows: Rows, successors: Rows, ending: Any) -> None:
        steps: Any = slice(None)
        if len(rows) and rows.min() < self.oldest:
            steps = rows >= self.oldest
            rows, successors, ending = rows[steps], successors[steps], ending[steps]
        places = self.place(rows)
        self._ending[places] = ending
        self._to_successor[places] = successors - rows
        for name, targets in self.columns.items():
            if name != OBS:
                nested.map_leaves(lambda target, leaf: target.__setitem__(places, leaf[steps]), targets, columns[name])
        self.num_env_steps += len(rows)
        if len(rows) and rows.min() < self._num_exported:
            self._changed_rows.append(rows[rows < self._num_exported])

    def _wait_at(self, id_: str, row: int, t: int) -> None:
        """Remember the newest row of an episode that may continue."""
        self._waiting[id_] = row, t
        if len(self._waiting) > self._most_waiting:  # episodes of crashed env runners never continue
            self._waiting = {id_: one for id_, one in self._waiting.items() if one[0] >= self.oldest}
            self._most_waiting = 64 + 2 * len(self._waiting)

    def replace(self, rows: Rows, columns: Mapping[str, Column]) -> None:
        """Replace values (B, ...) of steps; rows that were overwritten since are skipped.

        Raises:
            ValueError: a column is missing, or its values have another shape.
        """
        is_held = self.has_step(rows)
        rows = rows[is_held]
        places = self.place(rows)
        for name, values in columns.items():
            if name == OBS or name not in self.columns:
                known = ", ".join(one for one in self.columns if one != OBS)
                raise ValueError(f"{name} is not a column of the steps in the replay buffer, which has {known}")
            nested.map_leaves(partial(_replace, places, is_held, name), self.columns[name], values)
        if len(rows) and rows.min() < self._num_exported:
            self._changed_rows.append(rows[rows < self._num_exported])

    # -- reading -----------------------------------------------------------------------------------------------------

    def draw(self, num_rows: int, stream: np.random.Generator) -> Rows:
        """Draw rows with which a chunk may begin, uniformly and with replacement.

        Raises:
            ValueError: none of the rows has a step.
            RunFailure: none of the rows with a step has the steps before it.
        """
        if self.num_env_steps == 0:
            raise ValueError("an empty buffer cannot be sampled")
        # Rows without a step are dropped, so draw more, and some in reserve: one draw is usually enough.
        oldest, num_held = self.oldest, len(self)
        rows_for_one = 1.1 * num_held / self.num_env_steps

        def draw(missing: int) -> Rows:  # `Generator.integers` takes twice as long for small batches
            shares = stream.random(int(rows_for_one * missing) + 4)
            return oldest + (shares * num_held).astype(np.int64)

        return self.drawn(num_rows, draw)

    def drawn(self, num_rows: int, draw: Callable[[int], Rows]) -> Rows:
        """Return at least `num_rows` of the rows that `draw` returns, with which a chunk may begin.

        Raises:
            RunFailure: there are none.
        """
        rows = draw(num_rows)
        rows = rows[self.can_begin(rows)]
        while len(rows) < num_rows:
            found = draw(num_rows - len(rows))
            found = found[self.can_begin(found)]
            if len(rows) == len(found) == 0:
                self._check_lookback()
            rows = np.concatenate((rows, found))
        return rows[:num_rows]

    def can_begin(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return a mask of the stored rows that have a step and the lookback before it."""
        can_begin: npt.NDArray[np.bool_] = self._ending[self.place(rows)] != NO_STEP
        return can_begin & ~self.past(rows, self.num_lookback).is_cut if self.num_lookback else can_begin

    def _check_lookback(self) -> None:
        if not self.can_begin(np.arange(self.oldest, self.num_written)).any():
            what = f"the replay buffer does not hold the lookback before any step of module {self.module_id}"
            got = f"{len(self)} rows, {self.num_lookback} steps of lookback"
            raise RunFailure(
                Problem(what, "algorithm.replay_buffers", got, fix="set a larger capacity, or a shorter lookback")
            )

    def has_step(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows that are stored and have a step."""
        has_step: npt.NDArray[np.bool_] = self._ending[self.place(rows)] != NO_STEP
        has_step &= (rows >= self.oldest) & (rows < self.num_written)
        return has_step

    def n_steps(self, rows: Rows, n_step: int | Rows) -> NStepRows:
        """Follow each row for `n_step` steps (one number or one per row), or up to its episode's last known step."""
        last, num_steps = rows, np.ones(len(rows), np.int64)
        for step in range(1, _most(n_step)):
            successors = self.successors(last)
            continues = self._is_followed(last, successors) & (step < n_step)
            if not continues.any():
                break
            last = np.where(continues, successors, last)
            num_steps += continues
        return NStepRows(rows, last, num_steps)

    def successors(self, rows: Rows) -> Rows:
        """Return the row of the observation after each row's step."""
        return rows + self._to_successor[self.place(rows)]

    def steps_after(self, rows: Rows, num_steps: Rows) -> Rows:
        """Return the row that follows each row after `num_steps` (B,) steps, or -1 if that is not held."""
        found = rows
        for number in range(int(num_steps.max(initial=0))):
            found = np.where(self.has_step(found), found, -1)
            found = np.where((found >= 0) & (number < num_steps), self.successors(found), found)
        return found

    def observations_after(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return the rows (L, B) of the observations after each row's step, up to the last known one.

        Takes one pass for each step of the longest episode.

        Returns:
            The rows, with the last one repeated for episodes with fewer than L, and their number (B,).
        """
        path, number = [self.successors(rows)], np.ones(len(rows), np.int64)
        while (has_step := self._ending[self.place(path[-1])] != NO_STEP).any():
            path.append(np.where(has_step, self.successors(path[-1]), path[-1]))
            number += has_step
        return np.stack(path), number

    def observations_before(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return the rows (L, B) of each row's observation and of the held ones before it.

        The ring needs a lookback.

        Returns:
            The rows, with the earliest one repeated for episodes with fewer than L, and their number (B,).
        """
        path, number = [rows], np.ones(len(rows), np.int64)
        while True:
            distance = self._to_predecessor[self.place(path[-1])]
            is_held = (distance > 0) & (path[-1] - distance >= self.oldest)
            if not is_held.any():
                return np.stack(path), number
            path.append(path[-1] - np.where(is_held, distance, 0))
            number += is_held

    def past(self, rows: Rows, num_steps: int) -> PrecedingRows:
        """Follow each row back for `num_steps`, or up to the first held row of its episode."""
        path, num_before = [rows], np.zeros(len(rows), np.int64)
        is_held, is_cut = np.ones(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
        for _ in range(num_steps):
            distance = self._to_predecessor[self.place(path[-1])]
            is_here = path[-1] - distance >= self.oldest
            is_cut |= is_held & ~is_here
            is_held &= is_here & (distance > 0)
            path.append(path[-1] - np.where(is_held, distance, 0))
            num_before += is_held
        return PrecedingRows(np.stack(path, 1), num_before, is_cut)

    def step_back(self, rows: Rows, num_steps: int) -> tuple[Rows, Rows]:
        """Return the rows (B,) up to `num_steps` before rows with which a chunk may begin, and the distances.

        A distance is shorter if the episode begins, or if a chunk may not begin earlier.
        """
        past = self.past(rows, num_steps + self.num_lookback)
        num_back = np.minimum(past.num_before - np.where(past.is_cut, self.num_lookback, 0), num_steps)
        return past.rows[np.arange(len(rows)), num_back], num_back

    def _lookback(self, rows: Rows) -> LookbackRows:
        """Return the steps before chunks that begin with these rows."""
        past = self.past(rows, self.num_lookback)
        before = past.rows[:, :0:-1]  # oldest first
        places = self.place(before[np.arange(self.num_lookback, 0, -1) <= past.num_before[:, None]])
        return LookbackRows(
            {name: nested.gather(column, places) for name, column in self.columns.items()}, past.num_before
        )

    def transitions(self, rows: Rows, n_step: int | Rows = 1, gamma: float = 1.0) -> ColumnBlock:
        """Return n-step transitions as B chunks of one step each.

        `rewards` are sum_{k < m} gamma^k r[t + k], the last observation is s[t + m], and column `n_step` is m: n, or
        less if the episode ends or its next step is not known yet. Other columns belong to step t.

        Args:
            rows: rows (B,) of steps.
            n_step: n, or one number (B,) per row.
            gamma: discount factor.
        """
        found = self.n_steps(rows, n_step)
        places = self.place(rows)
        has_single_steps = found.last is rows
        last = places if has_single_steps else self.place(found.last)
        columns = {
            name: nested.gather(column, places) for name, column in self.columns.items() if name not in (OBS, REWARDS)
        }
        both = np.empty(2 * len(rows), np.int64)
        both[::2], both[1::2] = places, self.place(found.last + self._to_successor[last])
        columns[OBS] = nested.gather(self.columns[OBS], both)
        rewards = self.columns[REWARDS]
        columns[REWARDS] = rewards[places] if has_single_steps else self._discounted(found, gamma)
        columns[N_STEP] = found.num_steps
        chunks = self._chunks(columns, rows, np.ones(len(rows), np.int64), last)
        if self.num_lookback and _most(n_step) > 1:
            return replace(chunks, last_lookback=self._lookback(self.successors(found.last)))
        return chunks

    def fragments(self, rows: Rows, length: int | Rows) -> ColumnBlock:
        """Return chunks of up to `length` steps that begin at these rows, shorter at an episode's last known step.

        Args:
            rows: rows (B,) of steps.
            length: maximum number of steps of all chunks, or (B,) of each.
        """
        path, continues = [rows], np.ones(len(rows), np.bool_)
        lengths = np.ones(len(rows), np.int64)
        longest = _most(length)
        for step in range(1, longest):
            successors = self.successors(path[-1])
            continues = continues & self._is_followed(path[-1], successors) & (step < length)
            path.append(np.where(continues, successors, path[-1]))
            lengths += continues
        of_steps = np.stack(path, 1)  # (B, L), the last step is repeated after the end
        last = of_steps[:, -1]
        of_obs = np.concatenate((of_steps, last[:, None]), 1)
        of_obs[np.arange(len(rows)), lengths] = self.successors(last)
        each = np.arange(longest + 1)
        steps = self.place(of_steps[each[:-1] < lengths[:, None]])
        observations = self.place(of_obs[each <= lengths[:, None]])
        columns = {
            name: nested.gather(column, observations if name == OBS else steps) for name, column in self.columns.items()
        }
        columns[N_STEP] = np.ones(len(steps), np.int64)
        return self._chunks(columns, rows, lengths, self.place(last))

    def _is_followed(self, rows: Rows, successors: Rows) -> npt.NDArray[np.bool_]:
        """Return whether the steps of these rows are followed by a known step of the same episode."""
        continues = self._ending[self.place(rows)] == CONTINUES
        followed: npt.NDArray[np.bool_] = np.logical_and(continues, self._ending[self.place(successors)] != NO_STEP)
        return followed

    def _chunks(self, columns: Mapping[str, Column], first: Rows, lengths: Rows, last: Rows) -> ColumnBlock:
        """Return chunks of these lengths, from rows `first` to positions `last`."""
        ending = self._ending[last]
        lookback = self._lookback(first) if self.num_lookback else None
        return ColumnBlock(
            columns=columns,
            lengths=lengths,
            is_terminated=ending == TERMINATED,
            is_truncated=ending == TRUNCATED,
            t_started=np.zeros(len(last), np.int64) if lookback is None else lookback.num_before,
            episode_ids=_ChunkIds(first),
            lookback=lookback,
            module_id=self.module_id,
        )

    def _discounted(self, found: NStepRows, gamma: float) -> npt.NDArray[np.float32]:
        rewards = self.columns[REWARDS]
        rows, total = found.first, rewards[self.place(found.first)]
        for step in range(1, int(found.num_steps.max())):
            is_counted = step < found.num_steps
            rows = np.where(is_counted, self.successors(rows), rows)
            total = total + np.float32(gamma**step) * np.where(is_counted, rewards[self.place(rows)], 0)
        return np.asarray(total, np.float32)

    # -- state -------------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the contents as plain values and segments.

        Each segment covers a range of the arrays. It keeps its file from the previous state if nothing was written
        there since. Read or copy its values before the next block is added.
        """
        self._forget_changed_files()
        return {
            "num_written": self.num_written,
            "waiting": [[id_, row, t] for id_, (row, t) in self._waiting.items() if row >= self.oldest],
            "segments": [Segment(file, partial(self._values, number)) for number, file in enumerate(self._files)],
        }

    def _forget_changed_files(self) -> None:
        new = np.arange(max(self._num_exported, self.oldest), self.num_written)
        changed = self.place(np.concatenate([new, *self._changed_rows])) // self._rows_of_segment
        self._changed_rows, self._num_exported = [], self.num_written
        self._files += [SegmentFile() for _ in range(self._num_segments - len(self._files))]
        for number in np.unique(changed).tolist():
            self._files[number] = SegmentFile()

    @property
    def _num_segments(self) -> int:
        return -(-len(self) // self._rows_of_segment)

    def _places_of_segment(self, number: int) -> slice:
        """Return the positions that a segment covers."""
        first = number * self._rows_of_segment
        return slice(first, min(first + self._rows_of_segment, len(self)))

    def _values(self, number: int) -> dict[str, Any]:
        places = self._places_of_segment(number)
        return {
            "columns": {name: nested.map_leaves(lambda a: a[places].copy(), col) for name, col in self.columns.items()},
            "ending": self._ending[places].copy(),
            "to_successor": self._to_successor[places].copy(),
            **({"to_predecessor": self._to_predecessor[places].copy()} if self.num_lookback else {}),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a ring of the same capacity; later states reuse its files.

        Raises:
            ValueError: the state belongs to a different ring.
        """
        segments: Sequence[Segment] = state["segments"]
        self.num_written = self._num_exported = int(state["num_written"])
        if len(segments) != self._num_segments:
            raise ValueError(f"{len(self)} rows are in {self._num_segments} segments, got {len(segments)}")
        for number, values in enumerate(read_ahead(segments)):
            self._set_values(number, values)
        self._files = [segment.file for segment in segments]
        self._waiting = {str(id_): (int(row), int(t)) for id_, row, t in state["waiting"]}
        self.num_env_steps = int(np.count_nonzero(self._ending[: len(self)]))

    def _set_values(self, number: int, values: Mapping[str, Any]) -> None:
        places, columns = self._places_of_segment(number), values["columns"]
        num_rows = places.stop - places.start
        if len(values["ending"]) != num_rows:
            raise ValueError(f"segment {number} has {num_rows} rows, got {len(values['ending'])}")
        if not self.columns:
            self.allocate(columns)
        for name, targets in self.columns.items():
            nested.assign(targets, places, columns[name])
        self._ending[places], self._to_successor[places] = values["ending"], values["to_successor"]
        if self.num_lookback:
            # Segments written without lookback do not know the predecessors of their rows.
            self._to_predecessor[places] = values.get("to_predecessor", _GONE)


def _most(of_each: int | Rows) -> int:
    return of_each if isinstance(of_each, int) else int(of_each.max())


def _replace(places: Rows, is_held: npt.NDArray[np.bool_], name: str, targets: Any, values: Any) -> None:
    if np.shape(values) != (len(is_held), *targets.shape[1:]):
        raise ValueError(f"column {name}: got shape {np.shape(values)}, expected {(len(is_held), *targets.shape[1:])}")
    targets[places] = values[is_held]


def _assign_row(targets: Column, place: int, column: Column, number: int) -> None:
    if type(targets) is np.ndarray:
        targets[place] = column[number]
    else:
        nested.map_leaves(lambda target, leaf: target.__setitem__(place, leaf[number]), targets, column)
