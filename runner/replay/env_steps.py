"""Index of the rows of all modules by env step, for replay in lockstep.

Dimension letters: C capacity, K env steps, A agents of a module, B rows, R env steps of a block's agents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.config.errors import Problem, RunFailure
from runner.episodes.columns import Agents, ColumnBlock
from runner.replay.row_ring import RowRing, Rows

_NONE = -1
_TIME_BITS = 32  # a key is the number of an env episode, followed by the time step within it
_WINDOW = 256


@dataclass(frozen=True)
class DrawnRows:
    """The rows of a module at drawn env steps.

    Attributes:
        rows: rows (B,) of its ring.
        draw: index (B,) of the draw, 0 to K - 1.
        agent: index (B,) of the agent.
    """

    rows: Rows
    draw: Rows
    agent: Rows


class _Table:
    """The rows of one module: (C, A), by the position of the env step and the index of the agent."""

    def __init__(self, capacity: int) -> None:
        self.agents: list[str] = []
        self.rows = np.full((capacity, 0), _NONE, np.int64)
        self.env_t = np.zeros(capacity, np.int32)  # time step of each place of the ring

    def numbers_of(self, agent_ids: list[str]) -> Rows:
        """Return the indices of agents; new agents get a column."""
        new = [agent for agent in dict.fromkeys(agent_ids) if agent not in self.agents]
        self.agents += new
        self.rows = np.concatenate((self.rows, np.full((len(self.rows), len(new)), _NONE, np.int64)), 1)
        return np.array([self.agents.index(agent) for agent in agent_ids], np.int64)


class EnvSteps:
    """The newest C env steps, with the row of every acting agent.

    Args:
        rings: module id -> its ring of C rows; the buffer fills it before `add`.
        capacity: C.
    """

    def __init__(self, rings: Mapping[str, RowRing], capacity: int) -> None:
        self._rings, self.capacity = rings, capacity
        self._num_written = 0
        self._first = 0  # first env step with all of its rows
        self._keys = np.zeros(capacity, np.int64)
        self._tables: dict[str, _Table] = {}
        # Id -> number, newest time step, and number of env steps written before its first one.
        self._episodes: dict[str, tuple[int, int, int]] = {}
        self._num_episodes = 0
        self._most_episodes = 64

    def __len__(self) -> int:
        """Return the number of env steps with all of their rows."""
        self._skip_cut()
        return self._num_written - self._first

    @property
    def num_bytes(self) -> int:
        """The memory of the arrays in bytes."""
        return self._keys.nbytes + sum(table.rows.nbytes + table.env_t.nbytes for table in self._tables.values())

    @staticmethod
    def step_bytes(block: ColumnBlock) -> int:
        """Return the bytes that an env step of the block's module takes, including its key."""
        return 8 + 8 * len(set(_agents_of(block).agent_ids)) + 4

    def _held(self) -> Rows:
        return np.arange(max(0, self._num_written - self.capacity), self._num_written)

    # -- writing -----------------------------------------------------------------------------------------------------

    def add(self, blocks: Mapping[str, ColumnBlock], rows: Mapping[str, Rows]) -> None:
        """Add the env steps of blocks.

        Args:
            blocks: module id -> block.
            rows: module id -> rows (R,) to which the ring wrote its env steps.

        Raises:
            RunFailure: a block does not name the agents of its steps.
        """
        ids = dict.fromkeys(id_ for block in blocks.values() for id_ in _agents_of(block).multi_agent_episode_ids)
        for id_ in ids:
            if id_ not in self._episodes:
                self._episodes[id_] = (self._num_episodes, -1, self._num_written)
                self._num_episodes += 1
        keys = {module_id: self._keys_of(block) for module_id, block in blocks.items()}
        every = np.unique(np.concatenate([*keys.values(), np.empty(0, np.int64)]))
        steps = self._steps_of(every, ids)
        for module_id, block in blocks.items():
            table = self._tables.setdefault(module_id, _Table(self.capacity))
            agents = np.repeat(table.numbers_of(list(_agents_of(block).agent_ids)), block.lengths)
            of_rows = steps[np.searchsorted(every, keys[module_id])]
            is_held = of_rows >= max(0, self._num_written - self.capacity)
            table.rows[of_rows[is_held] % self.capacity, agents[is_held]] = rows[module_id][is_held]
            self._note_times(table, self._rings[module_id], block, rows[module_id])
        if len(self._episodes) > self._most_episodes:
            self._forget_episodes()

    def _keys_of(self, block: ColumnBlock) -> Rows:
        """Return the keys (R,) of the env steps at which a block's agents acted."""
        agents = _agents_of(block)
        numbers = np.array([self._episodes[id_][0] for id_ in agents.multi_agent_episode_ids], np.int64)
        keys: Rows = np.repeat(numbers << _TIME_BITS, block.lengths) + agents.env_t[block.obs_rows]
        return keys

    def _steps_of(self, keys: Rows, ids: Iterable[str]) -> Rows:
        """Return the numbers of env steps of these episodes, sorted by key, and -1 for steps that are not stored."""
        newest = {number: t for number, t, _ in (self._episodes[id_] for id_ in ids)}
        numbers, times = keys >> _TIME_BITS, keys & ((1 << _TIME_BITS) - 1)
        # An agent whose result was pending when a fragment was cut comes with the next fragment.
        is_late = times <= np.array([newest[number] for number in numbers.tolist()], np.int64)
        steps = np.full(len(keys), _NONE, np.int64)
        oldest = max(0, self._num_written - self.capacity)
        if is_late.any():
            held = self._held()
            known = held[np.isin(self._keys[held % self.capacity], keys[is_late])]
            steps[np.searchsorted(keys, self._keys[known % self.capacity])] = known
            # The only agent that acted at an env step may also come late. In an episode whose env steps were dropped,
            # it is unknown whether it was the only one.
            complete = [number for number, _, first in self._episodes.values() if first >= oldest]
            is_late &= (steps != _NONE) | ~np.isin(numbers, complete)
        new = np.flatnonzero(~is_late)
        steps[new] = self._num_written + np.arange(len(new))
        self._num_written += len(new)
        kept = new[-self.capacity :]
        places = steps[kept] % self.capacity
        self._keys[places] = keys[kept]
        for table in self._tables.values():
            table.rows[places] = _NONE
        for number, t in zip(numbers[new].tolist(), times[new].tolist(), strict=True):
            newest[number] = max(newest[number], t)
        for id_ in ids:
            number, _, first = self._episodes[id_]
            self._episodes[id_] = (number, newest[number], first)
        return steps

    @staticmethod
    def _note_times(table: _Table, ring: RowRing, block: ColumnBlock, rows: Rows) -> None:
        held, step_rows = rows >= ring.oldest, block.obs_rows
        env_t, rows = _agents_of(block).env_t, rows[held]
        table.env_t[ring.place(rows)] = env_t[step_rows[held]]
        table.env_t[ring.place(ring.successors(rows))] = env_t[step_rows[held] + 1]

    def _forget_episodes(self) -> None:
        """Forget env episodes without a stored step; some of them will never continue."""
        held = set((self._keys[self._held() % self.capacity] >> _TIME_BITS).tolist())
        self._episodes = {id_: one for id_, one in self._episodes.items() if one[0] in held}
        self._most_episodes = 64 + 2 * len(self._episodes)

    # -- reading -----------------------------------------------------------------------------------------------------

    def draw(self, num: int, stream: np.random.Generator) -> Rows:
        """Draw env steps (K,), uniformly and with replacement, from steps whose rows and lookback are all stored.

        Raises:
            RunFailure: there is no such env step.
        """
        if len(self) == 0:
            what = "the replay buffer does not hold an env step with the rows of all agents"
            raise RunFailure(Problem(what, "algorithm.replay_buffers", fix="set a larger capacity"))
        steps = np.empty(0, np.int64)
        while len(steps) < num:
            drawn = stream.integers(self._first, self._num_written, num - len(steps))
            drawn = drawn[self._are_complete(drawn)]
            if (
                len(steps) == len(drawn) == 0
                and not self._are_complete(np.arange(self._first, self._num_written)).any()
            ):
                what = "the replay buffer does not hold an env step with the rows of all agents and their lookback"
                raise RunFailure(Problem(what, "algorithm.replay_buffers", fix="set a larger capacity"))
            steps = np.concatenate((steps, drawn))
        return steps

    def _skip_cut(self) -> None:
        """Drop the oldest env steps some of whose rows were overwritten."""
        self._first = max(self._first, self._num_written - self.capacity)
        while self._first < self._num_written:
            window = np.arange(self._first, min(self._first + _WINDOW, self._num_written))
            is_cut = np.zeros(len(window), np.bool_)
            for module_id, table in self._tables.items():
                rows = table.rows[window % self.capacity]
                is_cut |= ((rows != _NONE) & (rows < self._rings[module_id].oldest)).any(1)
            num_cut = len(window) if is_cut.all() else int(is_cut.argmin())
            self._first += num_cut
            if num_cut < len(window):
                return

    def _are_complete(self, steps: Rows) -> npt.NDArray[np.bool_]:
        are_complete = np.ones(len(steps), np.bool_)
        for module_id, table in self._tables.items():
            rows, ring = table.rows[steps % self.capacity], self._rings[module_id]
            can_begin = (rows >= ring.oldest) & ring.can_begin(rows.reshape(-1)).reshape(rows.shape)
            are_complete &= ((rows == _NONE) | can_begin).all(1)
        return are_complete

    def rows_of(self, module_id: str, steps: Rows) -> DrawnRows:
        """Return the rows of a module at drawn env steps (K,), in order."""
        rows = self._tables[module_id].rows[steps % self.capacity]
        draw, agent = np.nonzero(rows != _NONE)
        return DrawnRows(rows[draw, agent], draw, agent)

    def agents_of(self, module_id: str, found: DrawnRows, last: Rows) -> Agents:
        """Return the agents of chunks that begin with these rows and whose last observations are in rows `last`.

        Each draw counts as a separate env episode, so that connectors can match the agents of one draw.
        """
        table, ring = self._tables[module_id], self._rings[module_id]
        both = np.stack((found.rows, last), 1).reshape(-1)
        return Agents(
            [table.agents[agent] for agent in found.agent.tolist()],
            [f"draw-{draw}" for draw in found.draw.tolist()],
            table.env_t[ring.place(both)].astype(np.int64),
        )

    # -- state -------------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the index as plain values and arrays."""
        places = self._held() % self.capacity
        return {
            "num_written": self._num_written,
            "keys": self._keys[places],
            "modules": {
                module_id: {"agents": list(table.agents), "rows": table.rows[places], "env_t": table.env_t.copy()}
                for module_id, table in self._tables.items()
            },
            "episodes": {id_: list(one) for id_, one in self._episodes.items()},
            "num_episodes": self._num_episodes,
            "most_episodes": self._most_episodes,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        self._num_written, self._num_episodes = int(state["num_written"]), int(state["num_episodes"])
        self._most_episodes = int(state["most_episodes"])
        places = self._held() % self.capacity
        self._keys[places] = state["keys"]
        for module_id, of_module in state["modules"].items():
            table = self._tables[module_id] = _Table(self.capacity)
            table.numbers_of(list(of_module["agents"]))
            table.rows[places], table.env_t[:] = of_module["rows"], of_module["env_t"]
        self._episodes = {id_: (int(one[0]), int(one[1]), int(one[2])) for id_, one in state["episodes"].items()}


def _agents_of(block: ColumnBlock) -> Agents:
    if block.agents is None:
        what = f"the experiences of module {block.module_id} do not name their agents"
        fix = "set replay_mode: independent, for a single agent"
        raise RunFailure(Problem(what, "algorithm.replay_buffers", "replay_mode lockstep", fix=fix))
    return block.agents
