"""The rows of the agents that one module acts for, in all sub-environments of a runner.

A slot is one agent in one sub-environment; rows are `[T, S]` (that agent's own time, slot). An agent's next row begins
when it is observed again, however many env steps it waited; rewards of the waiting time are summed up in the row of
the action that it waits for. Where an agent's episode ends, a gap row follows (see `chunks.py`). The first H rows
repeat the last H steps of the fragment before (the lookback); a row that still waits is carried over with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.env_runners.chunks import BoolArray, Chunks, IntArray, PastRows, copied, flat_rows, grown
from runner.episodes import SingleAgentEpisode, nested
from runner.episodes.columns import ACTIONS, OBS, REWARDS, Agents, Array, Column, ColumnBlock

AddColumns = Callable[[dict[str, Column]], None]
_GROWTH = 1.5


class AgentRows(Sequence[SingleAgentEpisode]):
    """Rows of S = N * A slots; as a sequence, the running episodes of the agents that were observed last.

    Args:
        module_id: the module that acts.
        agents: A agent ids; slot s is agent s % A in sub-environment s // A.
        num_envs: N.
        blank_obs, blank_action: an observation and an action with the structure, shapes and dtypes of their spaces.
        id_prefix: ids of env episodes are `<prefix>-<sub-environment>-<number>`.
        num_lookback: H.
    """

    def __init__(
        self,
        module_id: str,
        agents: Sequence[str],
        num_envs: int,
        blank_obs: Any,
        blank_action: Any,
        id_prefix: str,
        num_lookback: int,
    ) -> None:
        self.module_id = module_id
        self.agents = list(agents)
        self.max_rows = num_envs * len(agents)
        self._id_prefix = id_prefix
        self._past = num_lookback
        rows = num_lookback + 1
        leading = (rows, self.max_rows)
        self._obs: Column = nested.zeros(blank_obs, (rows + 1, self.max_rows))
        self._written_obs: Column | None = None
        self._steps: dict[str, Column] = {
            ACTIONS: nested.zeros(blank_action, leading),
            REWARDS: np.zeros(leading, np.float32),
        }
        self._knows_outputs = False
        self._is_gap = np.zeros(leading, np.bool_)
        self._is_terminated = np.zeros(leading, np.bool_)
        self._is_truncated = np.zeros(leading, np.bool_)
        self._env_t = np.zeros((rows + 1, self.max_rows), np.int64)
        self._number = np.zeros((rows + 1, self.max_rows), np.int64)
        self._infos: dict[tuple[int, int], Mapping[str, Any]] = {}
        self.clear()

    def clear(self) -> None:
        """Forget everything: all sub-environments are about to be reset."""
        num_slots = self.max_rows
        self.slots: IntArray = np.zeros(0, np.int64)  # observed last, also if they have just finished
        self._row = np.full(num_slots, self._past, np.int64)  # of the newest observation
        self.is_running = np.zeros(num_slots, np.bool_)
        self._is_used = np.zeros(num_slots, np.bool_)  # the row of the newest observation holds one
        self.is_waiting = np.zeros(num_slots, np.bool_)  # has acted and not been observed since
        self.has_terminated = np.zeros(num_slots, np.bool_)  # so the newest episode has ended
        self.has_truncated = np.zeros(num_slots, np.bool_)
        self._episode_start = np.full(num_slots, self._past, np.int64)  # may lie before row 0
        self._t_at_start = np.zeros(num_slots, np.int64)
        self._reward_before = np.zeros(num_slots, np.float64)
        self._is_gap[:] = False
        self._infos.clear()

    # -- writing -------------------------------------------------------------------------------------------------

    def begin(self, slots: IntArray, obs: Column, env_t: IntArray, numbers: IntArray) -> None:
        """Write the first observations (K, ...) of agents in env episodes of these numbers, at these env steps."""
        self._reserve_one_more(slots)
        follows = slots[self._is_used[slots]]
        self._is_gap[self._row[follows], follows] = True
        self._row[follows] += 1
        at = (self._row[slots], slots)
        nested.assign(self._obs, at, obs)
        self._env_t[at], self._number[at], self._is_gap[at] = env_t, numbers, False
        self._episode_start[slots] = self._row[slots]
        self._t_at_start[slots[self._row[slots] == self._past]] = 0
        self.is_running[slots] = self._is_used[slots] = True
        self.has_terminated[slots] = self.has_truncated[slots] = False
        for slot in slots.tolist() if self._infos else ():  # of a final observation that was in this row
            self._infos.pop((int(self._row[slot]), slot), None)

    def act(self, slots: IntArray, outputs: Mapping[str, Column]) -> None:
        """Write what running agents (K,) do on their newest observations: actions and more, (K, ...) each."""
        if not self._knows_outputs:
            self._add_columns(outputs)
        at = (self._row[slots], slots)
        for name, values in outputs.items():
            nested.assign(self._steps[name], at, values)
        self._steps[REWARDS][at] = self._reward_before[slots]
        self._is_terminated[at] = self._is_truncated[at] = self._is_gap[at] = False
        self._reward_before[slots] = 0.0
        self.is_waiting[slots] = True

    def add_rewards(self, slots: IntArray, rewards: npt.NDArray[np.float64], numbers: IntArray) -> None:
        """Add rewards to the action that an agent waits for; before its first action, to that one.

        An agent that has finished gets it for its last action, if that is still in this fragment.
        """
        row = self._row[slots]
        is_waiting = self.is_waiting[slots]
        is_of_episode = self._number[row, slots] == numbers
        has_step = ~is_waiting & is_of_episode & (row > self._past) & (row > self._episode_start[slots])
        is_late = ~is_waiting & ~has_step
        self._steps[REWARDS][row[is_waiting], slots[is_waiting]] += rewards[is_waiting]
        self._steps[REWARDS][row[has_step] - 1, slots[has_step]] += rewards[has_step]
        self._reward_before[slots[is_late]] += rewards[is_late]

    def observe(self, slots: IntArray, obs: Column, env_t: IntArray) -> None:
        """Write observations (K, ...) of agents that waited for one; complete their steps."""
        self._reserve_one_more(slots)
        self._row[slots] += 1
        at = (self._row[slots], slots)
        nested.assign(self._obs, at, obs)
        self._env_t[at] = env_t
        self._number[at] = self._number[self._row[slots] - 1, slots]
        self._is_gap[at] = False
        self.is_waiting[slots] = False

    def repeat_last(self, slots: IntArray, env_t: IntArray) -> None:
        """Write the last observations again, for agents that ended without a final one."""
        at = (self._row[slots], slots)
        written = None if self._written_obs is None else nested.take(self._written_obs, at)
        self.observe(slots, nested.take(self._obs, at), env_t)
        if written is not None:
            nested.assign(self._written_obs, (self._row[slots], slots), written)

    def end(self, slots: IntArray, is_terminated: BoolArray, is_truncated: BoolArray) -> None:
        """End the episodes of these agents, none of which waits."""
        has_step = self._row[slots] > self._episode_start[slots]
        at = (self._row[slots][has_step] - 1, slots[has_step])
        self._is_terminated[at] = is_terminated[has_step]
        self._is_truncated[at] = is_truncated[has_step]
        self.has_terminated[slots], self.has_truncated[slots] = is_terminated, is_truncated
        self.is_running[slots] = False

    def end_env(self, env: int) -> None:
        """End the env episode of a sub-environment; rewards of agents that were never observed end with it."""
        self._reward_before[env * len(self.agents) : (env + 1) * len(self.agents)] = 0.0

    def add_info(self, slot: int, info: Mapping[str, Any]) -> None:
        """Keep the info that came with the slot's newest observation."""
        if info:
            self._infos[(int(self._row[slot]), slot)] = info

    def _add_columns(self, outputs: Mapping[str, Column]) -> None:
        leading = self._is_gap.shape
        for name, values in outputs.items():
            if name not in self._steps:
                self._steps[name] = nested.map_leaves(
                    lambda leaf: np.zeros((*leading, *leaf.shape[1:]), leaf.dtype), values
                )
        self._knows_outputs = True

    def _reserve_one_more(self, slots: IntArray) -> None:
        num_rows = len(self._is_gap)
        if len(slots) == 0 or self._row[slots].max() + 2 < num_rows:
            return
        more = int(num_rows * (_GROWTH - 1)) + 2
        self._obs = grown(self._obs, more)
        if self._written_obs is not None:
            self._written_obs = grown(self._written_obs, more)
        self._steps = {name: grown(column, more) for name, column in self._steps.items()}
        self._is_gap, self._is_terminated, self._is_truncated, self._env_t, self._number = (
            grown(array, more)
            for array in (self._is_gap, self._is_terminated, self._is_truncated, self._env_t, self._number)
        )

    def add_slots(self, more: int) -> None:
        """Make room for `more` slots behind the present ones; no agent is in them yet."""
        first, self.max_rows = self.max_rows, self.max_rows + more

        def widen(array: Array) -> Array:
            return np.concatenate((array, np.zeros((len(array), more, *array.shape[2:]), array.dtype)), 1)

        self._obs = nested.map_leaves(widen, self._obs)
        if self._written_obs is not None:
            self._written_obs = nested.map_leaves(widen, self._written_obs)
        self._steps = {name: nested.map_leaves(widen, column) for name, column in self._steps.items()}
        for name in ("_is_gap", "_is_terminated", "_is_truncated", "_env_t", "_number"):
            setattr(self, name, widen(getattr(self, name)))
        for name in (*(f"_{name}" for name in _COUNTERS), *_FLAGS[1:], "_row"):
            setattr(self, name, np.concatenate((getattr(self, name), np.zeros(more, getattr(self, name).dtype))))
        self._row[first:] = self._episode_start[first:] = self._past

    # -- what pieces of the env pipelines read ------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def current_obs(self) -> Column:
        """The newest observations (K, ...) as the environment returned them."""
        return nested.take(self._obs, (self._row[self.slots], self.slots))

    @property
    def starts_episode(self) -> BoolArray:
        """Whether (K,) the newest observation is the agent's first."""
        is_first: BoolArray = self._episode_start[self.slots] == self._row[self.slots]
        return is_first

    def newest_step(self, column: str) -> Column | None:
        """Return the newest row (K, ...) of a step column; None while there is none."""
        if column not in self._steps or self._past == 0:
            return None
        return nested.take(self._steps[column], (self._row[self.slots] - 1, self.slots))

    def write_obs(self, obs: Column) -> None:
        """Let the episodes hold `obs` (K, ...) in the place of the newest observations, from here to the learner."""
        if self._written_obs is None:
            leading = (len(self._is_gap) + 1, self.max_rows)
            self._written_obs = nested.map_leaves(lambda leaf: np.zeros((*leading, *leaf.shape[1:]), leaf.dtype), obs)
        nested.assign(self._written_obs, (self._row[self.slots], self.slots), obs)

    def history(self, column: str, length: int) -> tuple[Column, BoolArray]:
        """Return what the agents saw or did last; see `RolloutBuffer.history`. K rows."""
        is_obs = column == OBS
        if length > self._past + is_obs:
            raise ValueError(f"a history of {length} {column} needs a longer lookback than {self._past} steps")
        rows = self._row[self.slots][:, None] + np.arange(is_obs - length, is_obs)
        is_there = rows >= self._episode_start[self.slots][:, None]
        values = nested.take(self._obs if is_obs else self._steps[column], (rows, self.slots[:, None]))
        for leaf in nested.leaves(values):
            leaf[~is_there] = 0
        return values, is_there

    @property
    def _held_obs(self) -> Column:
        return self._obs if self._written_obs is None else self._written_obs

    def __getitem__(self, index: int) -> SingleAgentEpisode:  # type: ignore[override]
        if not -len(self) <= index < len(self):
            raise IndexError(f"agent {index} of {len(self)} that were observed")
        return self.running_episode(int(self.slots[index]))

    def running_episode(self, slot: int) -> SingleAgentEpisode:
        """Return the chunk so far of the agent in a slot, without the step it waits for."""
        end = int(self._row[slot])
        start = int(self._episode_start[slot])
        first = max(start, self._past)
        seen_before = first - max(start, 0) if start < self._past else 0
        rows = slice(first - seen_before, end)
        number = int(self._number[end, slot])
        infos = [dict(self._infos.get((row, slot), {})) for row in range(rows.start, end + 1)] if self._infos else None
        episode = SingleAgentEpisode.from_columns(
            id_=self._episode_id(slot, number),
            observations=nested.take(self._held_obs, (slice(rows.start, end + 1), slot)),
            actions=nested.take(self._steps[ACTIONS], (rows, slot)),
            rewards=self._steps[REWARDS][rows, slot],
            extra_model_outputs={
                name: nested.take(column, (rows, slot))
                for name, column in self._steps.items()
                if name not in (ACTIONS, REWARDS)
            },
            infos=infos,
            terminated=bool(self.has_terminated[slot]),
            truncated=bool(self.has_truncated[slot]),
            t_started=first - start,
            len_lookback_buffer=seen_before,
            agent_id=self.agent_of(slot),
            module_id=self.module_id,
        )
        episode.multi_agent_episode_id = self._env_episode_id(slot, number)
        return episode

    def agent_of(self, slot: int) -> str:
        """Return the agent of a slot."""
        return self.agents[slot % len(self.agents)]

    def env_of(self, slot: int) -> int:
        """Return the sub-environment of a slot."""
        return slot // len(self.agents)

    def _env_episode_id(self, slot: int, number: int) -> str:
        return f"{self._id_prefix}-{self.env_of(slot)}-{number}"

    def _episode_id(self, slot: int, number: int) -> str:
        return f"{self._env_episode_id(slot, number)}-{self.agent_of(slot)}"

    # -- cutting ---------------------------------------------------------------------------------------------------

    def cut(self, complete: AddColumns = lambda columns: None) -> tuple[ColumnBlock, Column]:
        """Return the completed steps so far as a block, and its observations as the environment returned them.

        Nothing is lost: running episodes go on in the next fragment, steps that still wait included.
        """
        num_steps = max(int(self._row.max()) - self._past, 1)
        window = slice(self._past, self._past + num_steps)
        obs_window = slice(window.start, window.stop + 1)
        is_step = (np.arange(self._past, window.stop)[:, None] < self._row) & ~self._is_gap[window]
        chunks = Chunks.of(is_step)
        slots, t_start = chunks.slot, chunks.t_start
        continues = t_start == 0
        t_started = np.where(continues, self._t_at_start[slots], 0)
        numbers = self._number[window][t_start, slots].tolist()

        raw_obs = flat_rows(self._obs, obs_window, chunks.obs_rows)
        is_raw = self._written_obs is None
        columns = {OBS: raw_obs if is_raw else flat_rows(self._written_obs, obs_window, chunks.obs_rows)}
        columns |= {name: flat_rows(column, window, chunks.step_rows) for name, column in self._steps.items()}
        if len(slots):  # without a step there may be no outputs yet to complete
            complete(columns)
        keys = list(zip(slots.tolist(), numbers, strict=True))
        block = ColumnBlock(
            columns=columns,
            lengths=chunks.lengths,
            is_terminated=self._is_terminated[window][chunks.t_end, slots],
            is_truncated=self._is_truncated[window][chunks.t_end, slots],
            t_started=t_started,
            episode_ids=[self._episode_id(*key) for key in keys],
            lookback=self._lookback(slots, np.where(continues, np.minimum(t_started, self._past), 0), complete),
            infos=_SlotInfos(dict(self._infos), slots, t_start + self._past) if self._infos else None,
            module_id=self.module_id,
            agents=Agents(
                [self.agent_of(slot) for slot in slots.tolist()],
                [self._env_episode_id(*key) for key in keys],
                flat_rows(self._env_t, obs_window, chunks.obs_rows),
            ),
        )
        self._begin_next_fragment()
        return block, raw_obs

    def _lookback(self, slots: IntArray, num_before: IntArray, complete: AddColumns) -> PastRows | None:
        if not num_before.any():
            return None
        every = np.arange(self._past * self.max_rows)
        past = {OBS: self._held_obs, **self._steps}
        rows = {name: flat_rows(column, slice(self._past), every) for name, column in past.items()}
        complete(rows)

        def unflat(array: Array) -> Array:
            return array.reshape(self._past, self.max_rows, *array.shape[1:])

        columns = {name: nested.map_leaves(unflat, column) for name, column in rows.items()}
        return PastRows(columns, slots, num_before)

    def _begin_next_fragment(self) -> None:
        """Move the lookback, and the rows that still wait, to the start."""
        every = np.arange(self.max_rows)
        source = (self._row + np.arange(-self._past, 1)[:, None], every)
        first = slice(self._past + 1)
        columns = [self._obs, *self._steps.values(), self._is_gap, self._env_t, self._number]
        if self._written_obs is not None:
            columns.append(self._written_obs)
        for column in columns:
            nested.assign(column, first, nested.take(column, source))
        moved = self._row - self._past
        self._infos = {(self._past, slot): info for (row, slot), info in self._infos.items() if row == self._row[slot]}
        self._t_at_start = self._row - self._episode_start
        self._episode_start = self._episode_start - moved
        self._row[:] = self._past
        self._is_used = self.is_running.copy()
        for flags in (self._is_gap, self._is_terminated, self._is_truncated):
            flags[: self._past + 1] = False

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the state between fragments: newest observations, lookback rows and counters of running episodes."""
        first = slice(self._past + 1)
        return {
            "obs": copied(nested.take(self._obs, first)),
            "written_obs": None if self._written_obs is None else copied(nested.take(self._written_obs, first)),
            "steps": self._saved_steps(),
            "env_t": self._env_t[first].copy(),
            "number": self._number[first].copy(),
            **{name: getattr(self, f"_{name}").copy() for name in _COUNTERS},
            **{name: getattr(self, name).copy() for name in _FLAGS},
        }

    def _saved_steps(self) -> dict[str, Column]:
        """Return the lookback rows of running episodes and the row of steps that wait for their end, else zeros.

        Elsewhere the memory holds older steps, and a resumed run would have another state than a straight one.
        """
        saved = {name: copied(nested.take(column, slice(self._past + 1))) for name, column in self._steps.items()}
        is_step = np.arange(self._past + 1)[:, None] >= self._episode_start
        is_step[self._past] = self.is_waiting
        unused = np.nonzero(~is_step)
        for column in saved.values():
            nested.assign(column, unused, nested.map_leaves(np.zeros_like, nested.take(column, unused)))
        return saved

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state` with the same slots and H."""
        self.clear()
        first = slice(self._past + 1)
        more = len(self._is_gap) - self._past - 1
        nested.assign(self._obs, first, state["obs"])
        if state["written_obs"] is not None:
            self._written_obs = grown(state["written_obs"], more + 1)
        self._steps = {name: grown(column, more) for name, column in state["steps"].items()}
        self._knows_outputs = False
        self._env_t[first], self._number[first] = state["env_t"], state["number"]
        for name in _COUNTERS:
            setattr(self, f"_{name}", np.array(state[name]))
        for name in _FLAGS:
            setattr(self, name, np.array(state[name]))


_COUNTERS = ("is_used", "episode_start", "t_at_start", "reward_before")
_FLAGS = ("slots", "is_running", "is_waiting", "has_terminated", "has_truncated")


class _SlotInfos:
    """Infos by (row, slot), taken apart per chunk when asked for."""

    def __init__(self, infos: Mapping[tuple[int, int], Mapping[str, Any]], slots: IntArray, first_row: IntArray):
        self._infos, self._slots, self._first_row = infos, slots, first_row

    def rows_of(self, chunk: int, num_before: int, num_rows: int) -> list[dict[str, Any]] | None:
        """Return the infos of a chunk's observations."""
        slot, first = int(self._slots[chunk]), int(self._first_row[chunk])
        infos = [dict(self._infos.get((row, slot), {})) for row in range(first, first + num_rows)]
        return [{} for _ in range(num_before)] + infos
