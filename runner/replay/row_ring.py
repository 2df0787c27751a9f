"""A ring of rows: the newest observations of many episodes and the steps taken on them, columns first.

A row holds one observation and, as soon as it is known, the step that was taken on it. Rows are numbered from 0 on in
the order in which their observations came; row r lies at place r % capacity, over row r - capacity. Each row knows how
far its successor in the same episode is, so that chunks of any number of sub-environments, agents and simulators may
come in turns, every observation is held once, and next observations and n-step returns are made when rows are sampled.

Dimension letters: C capacity, R env steps, E episode chunks, B sampled rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.config.errors import Problem, RunFailure
from runner.episodes import nested
from runner.episodes.columns import DEFAULT_MODULE_ID, OBS, REWARDS, Column, ColumnBlock

Rows = npt.NDArray[np.int64]

# Column of sampled transitions: the steps that their rewards are the discounted sum of.
N_STEP = "n_step"

# How the step on a row ended; rows that wait for their step, and last observations of episodes, have none.
NO_STEP, GOES_ON, TERMINATED, TRUNCATED = range(4)


@dataclass(frozen=True)
class NStepRows:
    """Where n-step transitions begin and end.

    Attributes:
        first: (B,) row of the observation that was acted on.
        last: (B,) row of the last step that is counted.
        num_steps: (B,) int64, 1 to n: fewer where the episode ends, or where its next step is not known yet.
    """

    first: Rows
    last: Rows
    num_steps: Rows


class RowRing:
    """Holds the newest C rows of episode chunks.

    An episode is continued by its id: the first observation of a chunk with `t_started` > 0 is the last one that is
    held of it already.

    Args:
        capacity: C; the last observation of an episode, which has no step, takes a row, too.
        module_id: of the module that acted.

    Attributes:
        columns: name -> (C, ...) arrays, nested where the blocks' are; empty before the first block.
        num_written: rows since the beginning.
        num_env_steps: env steps that are held.
    """

    def __init__(self, capacity: int, module_id: str = DEFAULT_MODULE_ID) -> None:
        self.capacity = capacity
        self.module_id = module_id
        self.columns: dict[str, Column] = {}
        self.num_written = 0
        self.num_env_steps = 0
        self._ending = np.zeros(capacity, np.uint8)
        self._to_successor = np.zeros(capacity, np.int32)
        self._waiting: dict[str, tuple[int, int]] = {}  # episode id -> row and time step of its newest observation
        self._most_waiting = 64
        self._late: list[Rows] = []  # rows whose steps were written after `segment` had given the rows
        self._given = 0  # rows that `segment` has given

    def __len__(self) -> int:
        """Return how many rows are held."""
        return min(self.num_written, self.capacity)

    @property
    def oldest(self) -> int:
        """The number of the oldest row that is held."""
        return max(0, self.num_written - self.capacity)

    def place(self, rows: Rows) -> Rows:
        """Return where rows lie in the arrays."""
        return rows % self.capacity

    def row_at(self, places: Rows) -> Rows:
        """Return the rows that lie at places of the arrays."""
        return self.oldest + (places - self.oldest) % self.capacity

    @property
    def num_bytes(self) -> int:
        """The memory of the arrays, which is taken with the first block."""
        arrays = [leaf for column in self.columns.values() for leaf in nested.leaves(column)]
        return sum(array.nbytes for array in (*arrays, self._ending, self._to_successor))

    # -- writing -----------------------------------------------------------------------------------------------------

    def add(self, block: ColumnBlock) -> Rows:
        """Write the chunks of a block; returns the rows (<= R,) of its env steps that are held, in their order.

        Raises:
            RunFailure: the block has other columns than the ones before.
        """
        if self.columns and self.columns.keys() != block.columns.keys():
            what = "experiences have other columns than the ones that the replay buffer holds"
            raise RunFailure(
                Problem(what, "algorithm.replay_buffers", ", ".join(block.columns), ", ".join(self.columns))
            )
        if not self.columns:
            self.columns = {name: nested.map_leaves(self._like, column) for name, column in block.columns.items()}
        rows, is_new = self._rows_of_observations(block)
        end = self.num_written + int(np.count_nonzero(is_new))
        self._write_observations(block.columns[OBS], np.flatnonzero(is_new), end)
        is_step = np.ones(len(rows), np.bool_)
        is_step[block.first_obs_rows + block.lengths] = False
        rows_of_steps, successors = rows[is_step], rows[1:][is_step[:-1]]
        ending = np.full(block.num_rows, GOES_ON, np.uint8)
        last_steps = block.offsets[1:] - 1
        ending[last_steps[block.is_terminated]] = TERMINATED
        ending[last_steps[block.is_truncated & ~block.is_terminated]] = TRUNCATED
        self._wait(block, rows)
        return self._write_steps(block.columns, rows_of_steps, successors, ending)

    def _like(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.zeros((self.capacity, *column.shape[1:]), column.dtype)

    def _rows_of_observations(self, block: ColumnBlock) -> tuple[Rows, npt.NDArray[np.bool_]]:
        """Return the row of each observation (R + E,), and whether it is a new one."""
        is_new = np.ones(block.num_rows + len(block), np.bool_)
        continued, known = [], []
        for first, id_, t_started in zip(
            block.first_obs_rows.tolist(), block.episode_ids, block.t_started.tolist(), strict=True
        ):
            row, t = self._waiting.pop(id_, (-1, -1))
            if t == t_started and row >= self.oldest:  # no chunk between the two was left out
                continued.append(first)
                known.append(row)
        is_new[continued] = False
        rows = self.num_written + np.cumsum(is_new) - 1
        rows[continued] = known
        return rows, is_new

    def _write_observations(self, obs: Column, numbers: Rows, end: int) -> None:
        """Write the observations with these numbers to rows up to `end`, the newest C of them."""
        numbers = numbers[max(0, len(numbers) - self.capacity) :]
        first = (end - len(numbers)) % self.capacity
        until_seam = min(len(numbers), self.capacity - first)
        targets = self.columns[OBS]
        for place, part in ((first, numbers[:until_seam]), (0, numbers[until_seam:])):
            places = slice(place, place + len(part))
            self.num_env_steps -= int(np.count_nonzero(self._ending[places]))
            self._ending[places] = NO_STEP
            nested.map_leaves(lambda target, leaf, p=places, n=part: leaf.take(n, 0, target[p], "clip"), targets, obs)
        self.num_written = end

    def _write_steps(self, columns: Mapping[str, Column], rows: Rows, successors: Rows, ending: Any) -> Rows:
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
        if len(rows) and rows.min() < self._given:
            self._late.append(rows[rows < self._given])
        return rows

    def _wait(self, block: ColumnBlock, rows: Rows) -> None:
        """Keep the newest row of each episode that may go on."""
        last = rows[block.first_obs_rows + block.lengths].tolist()
        ends = (block.t_started + block.lengths).tolist()
        is_done = (block.is_terminated | block.is_truncated).tolist()
        for id_, row, t, done in zip(block.episode_ids, last, ends, is_done, strict=True):
            if not done:
                self._waiting[id_] = row, t
        if len(self._waiting) > self._most_waiting:  # some will never go on, of runners that were lost
            self._waiting = {id_: one for id_, one in self._waiting.items() if one[0] >= self.oldest}
            self._most_waiting = 64 + 2 * len(self._waiting)

    # -- reading -----------------------------------------------------------------------------------------------------

    def draw(self, num_rows: int, stream: np.random.Generator) -> Rows:
        """Draw rows with a step, uniformly and with replacement.

        Raises:
            ValueError: there is none.
        """
        if self.num_env_steps == 0:
            raise ValueError("an empty buffer cannot be sampled")
        rows = np.empty(0, np.int64)
        while len(rows) < num_rows:
            drawn = stream.integers(self.oldest, self.num_written, num_rows - len(rows))
            rows = np.concatenate((rows, drawn[self._ending[self.place(drawn)] != NO_STEP]))
        return rows

    def has_step(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return which rows are held and have a step."""
        is_held = (rows >= self.oldest) & (rows < self.num_written)
        with_step: npt.NDArray[np.bool_] = np.logical_and(is_held, self._ending[self.place(rows)] != NO_STEP)
        return with_step

    def n_steps(self, rows: Rows, n_step: int | Rows) -> NStepRows:
        """Follow each row for `n_step` steps, a number or one for each row, or to where its episode ends or waits."""
        last, num_steps = rows, np.ones(len(rows), np.int64)
        for step in range(1, int(np.max(n_step))):
            successors = self.successors(last)
            goes_on = self._is_followed(last, successors) & (step < n_step)
            if not goes_on.any():
                break
            last = np.where(goes_on, successors, last)
            num_steps += goes_on
        return NStepRows(rows, last, num_steps)

    def successors(self, rows: Rows) -> Rows:
        """Return the row of the observation after each row's step."""
        return rows + self._to_successor[self.place(rows)]

    def transitions(self, rows: Rows, n_step: int | Rows = 1, gamma: float = 1.0) -> ColumnBlock:
        """Return n-step transitions as B chunks of one step each.

        `rewards` are sum_{k < m} gamma^k r[t + k], the last observation is s[t + m], and column `n_step` is m: n, or
        less where the episode ends or its next step is not known yet. Other columns are of step t.

        Args:
            rows: (B,) of steps.
            n_step: n, or (B,) one for each row.
            gamma: discount factor.
        """
        found = self.n_steps(rows, n_step)
        places = self.place(found.first)
        columns = {
            name: nested.take(column, places) for name, column in self.columns.items() if name not in (OBS, REWARDS)
        }
        both = np.empty(2 * len(rows), np.int64)
        both[::2], both[1::2] = places, self.place(self.successors(found.last))
        columns[OBS] = nested.take(self.columns[OBS], both)
        columns[REWARDS] = self._discounted(found, gamma)
        columns[N_STEP] = found.num_steps
        return self._chunks(columns, np.ones(len(rows), np.int64), found.last)

    def fragments(self, rows: Rows, length: int | Rows) -> ColumnBlock:
        """Return chunks of up to `length` steps that begin at these rows; shorter where the episode ends or waits.

        Args:
            rows: (B,) of steps.
            length: most steps of a chunk, or (B,) of each.
        """
        path, goes_on = [rows], np.ones(len(rows), np.bool_)
        lengths = np.ones(len(rows), np.int64)
        longest = int(np.max(length))
        for step in range(1, longest):
            successors = self.successors(path[-1])
            goes_on = goes_on & self._is_followed(path[-1], successors) & (step < length)
            path.append(np.where(goes_on, successors, path[-1]))
            lengths += goes_on
        of_steps = np.stack(path, 1)  # (B, L), the last step again and again behind the end
        last = of_steps[:, -1]
        of_obs = np.concatenate((of_steps, last[:, None]), 1)
        of_obs[np.arange(len(rows)), lengths] = self.successors(last)
        each = np.arange(longest + 1)
        steps = self.place(of_steps[each[:-1] < lengths[:, None]])
        observations = self.place(of_obs[each <= lengths[:, None]])
        columns = {
            name: nested.take(column, observations if name == OBS else steps) for name, column in self.columns.items()
        }
        return self._chunks(columns, lengths, last)

    def _is_followed(self, rows: Rows, successors: Rows) -> npt.NDArray[np.bool_]:
        """Return whether the episode goes on after the steps of these rows with a step that is known."""
        goes_on = self._ending[self.place(rows)] == GOES_ON
        followed: npt.NDArray[np.bool_] = np.logical_and(goes_on, self._ending[self.place(successors)] != NO_STEP)
        return followed

    def _chunks(self, columns: Mapping[str, Column], lengths: Rows, last: Rows) -> ColumnBlock:
        """Return chunks of these lengths, whose last steps are in rows `last`."""
        ending = self._ending[self.place(last)]
        return ColumnBlock(
            columns=columns,
            lengths=lengths,
            is_terminated=ending == TERMINATED,
            is_truncated=ending == TRUNCATED,
            t_started=np.zeros(len(last), np.int64),
            episode_ids=[""] * len(last),
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

    def segment(self) -> dict[str, Any]:
        """Return what has been written since the last segment, as plain values and arrays.

        All segments since the one that holds the oldest row, loaded in their order, make the same ring again.
        """
        late = np.concatenate([np.empty(0, np.int64), *self._late])
        new = np.arange(max(self._given, self.oldest), self.num_written)
        rows = np.concatenate((late[late >= self.oldest], new))
        self._late, self._given = [], self.num_written
        return self._rows_to_state(rows)

    def get_state(self) -> dict[str, Any]:
        """Return everything that is held, as one segment; the next segment is none the shorter."""
        return self._rows_to_state(np.arange(self.oldest, self.num_written))

    def _rows_to_state(self, rows: Rows) -> dict[str, Any]:
        places = self.place(rows)
        return {
            "rows": rows,
            "num_written": self.num_written,
            "columns": {name: nested.take(column, places) for name, column in self.columns.items()},
            "ending": self._ending[places],
            "to_successor": self._to_successor[places],
            "waiting": dict(self._waiting),
        }

    def load(self, segment: Mapping[str, Any]) -> None:
        """Take over a segment that follows the ones that were loaded before."""
        rows, columns = np.asarray(segment["rows"]), segment["columns"]
        if not self.columns:
            self.columns = {name: nested.map_leaves(self._like, column) for name, column in columns.items()}
        self.num_written = self._given = int(segment["num_written"])
        is_held = rows >= self.oldest
        places = self.place(rows[is_held])
        for name, targets in self.columns.items():
            nested.assign(targets, places, nested.take(columns[name], is_held))
        self._ending[places] = segment["ending"][is_held]
        self._to_successor[places] = segment["to_successor"][is_held]
        self._waiting = {id_: (int(row), int(t)) for id_, (row, t) in segment["waiting"].items()}
        self._late = []
        self.num_env_steps = int(np.count_nonzero(self._ending[: len(self)]))
