"""Store of rows `[T, S]` (time, slot): running episodes are views of it, and column blocks are cut from it.

Each slot holds a sequence of episodes: of a sub-environment (`LockStepRows`) or of one agent in one sub-environment
(`AgentRows`). The two differ in how rows are written: in lock step, or at each slot's time.

The first H rows repeat the last H steps of the previous fragment (the lookback). The end of an episode is followed by a
gap row with the final observation of the episode.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from runner.config.errors import RunFailure
from runner.episodes import SingleAgentEpisode, nested
from runner.episodes.block_state import storable_info
from runner.episodes.columns import ACTIONS, DEFAULT_MODULE_ID, OBS, REWARDS, Agents, Column, ColumnBlock
from runner.rows.array_namespace import NUMPY, Array, ArrayNamespace
from runner.rows.chunks import Chunks
from runner.rows.fragments import AddColumns, Fragment, columns_of, lookback_of
from runner.rows.infos import RowInfos
from runner.rows.row_arrays import RowArrays
from runner.rows.running_episodes import RunningEpisodes


class RowStore(RunningEpisodes):
    """Rows of S slots.

    Args:
        num_slots: S, the maximum number of slots that act in a step.
        blank_obs, blank_action: an observation and an action with the structure, shapes and dtypes of their spaces.
        num_lookback: H, number of past steps that running episodes and cut chunks can see.
        xp: array namespace of the rows. Writers pass and readers get such arrays. Only the columns of a block are in
            this namespace, everything else is in numpy.
        labels: names of further int64 columns.
    """

    module_id = DEFAULT_MODULE_ID
    # Whether a slot may have acted on its newest observation, and not have the result, when a fragment is cut.
    _acts_before_result: ClassVar[bool] = True
    # Key in a state -> attribute, an array with a number for each slot.
    _counters: ClassVar[Mapping[str, str]]

    def __init__(
        self,
        num_slots: int,
        blank_obs: Any,
        blank_action: Any,
        num_lookback: int,
        xp: ArrayNamespace = NUMPY,
        labels: tuple[str, ...] = (),
    ) -> None:
        self.max_rows = num_slots
        self._past = num_lookback
        self._xp = xp
        self._arrays = RowArrays(xp, num_lookback + 2, num_slots, blank_obs, blank_action, labels)
        self._infos = RowInfos()
        self.clear()

    def clear(self) -> None:
        """Forget everything before all sub-environments are reset."""
        self._row = self._first_rows()  # row of the newest observation, (S,) or one for all slots
        self._episode_start = self._zeros(int) + self._past  # row of the first observation; may be negative
        self._t_at_start = self._zeros(int)  # time step at which the fragment started
        for flags in (self._arrays.is_gap, self._arrays.is_terminated, self._arrays.is_truncated):
            flags[:] = False
        self._infos.clear()

    def _zeros(self, dtype: type) -> Array:
        return self._xp.zeros((self.max_rows,), dtype)

    # -- what differs between stores -------------------------------------------------------------------------------

    @abstractmethod
    def _first_rows(self) -> Any:
        """Return the first row of a fragment, (S,) or one for all slots."""

    @property
    @abstractmethod
    def _observed(self) -> tuple[Any, Any]:
        """The rows of the newest observations, (K,) or one for all, and an index of their slots."""

    @abstractmethod
    def _recent(self, column: Column, first: int, stop: int) -> Column:
        """Return copies (K, stop - first, ...) of the rows from newest + `first` to newest + `stop` - 1."""

    @abstractmethod
    def _newest_rows(self, num_rows: int) -> Any:
        """Return the index in arrays (rows, S) of the newest rows of all slots."""

    @abstractmethod
    def _row_of(self, slot: int) -> int:
        """Return the row of a slot's newest observation."""

    @abstractmethod
    def _is_step(self) -> Array:
        """Return a mask (T, S) of the rows of the fragment that are steps."""

    @abstractmethod
    def _numbers_at(self, t: Array, slots: Array) -> Array:
        """Return the number (E,), within its slot, of the episode that each of these steps belongs to."""

    @abstractmethod
    def _number_now(self, slot: int) -> int:
        """Return the number within its slot of the newest observation's episode."""

    @abstractmethod
    def _ends_now(self, slot: int) -> tuple[bool, bool]:
        """Return whether a slot's newest episode has terminated, and whether it was truncated."""

    @abstractmethod
    def _episode_id(self, slot: int, number: int) -> str:
        """Return the id of an episode."""

    def _agents(self, chunks: Chunks, numbers: list[int]) -> Agents | None:
        """Return the agents of chunks, or None with a single agent."""
        return None

    # -- running episodes ------------------------------------------------------------------------------------------

    def _at(self, step: int = 0) -> Any:
        """Return the index in arrays (rows, S) of the newest observations' rows, or of earlier rows (-1, -2, ...)."""
        rows, slots = self._observed
        return rows + step, slots

    @property
    def current_obs(self) -> Column:
        """See `RunningEpisodes`."""
        return nested.take(self._arrays.obs, self._at())

    @property
    def starts_episode(self) -> Array:
        """See `RunningEpisodes`."""
        rows, slots = self._observed
        return self._episode_start[slots] == rows

    def newest_step(self, column: str) -> Column | None:
        """See `RunningEpisodes`."""
        if column not in self._arrays.steps or self._past == 0:
            return None
        return nested.take(self._arrays.steps[column], self._at(-1))

    def write_obs(self, obs: Column) -> None:
        """See `RunningEpisodes`."""
        self._arrays.write_obs(self._at(), obs)

    def history(self, column: str, length: int) -> tuple[Column, Array]:
        """See `RunningEpisodes`."""
        stop = int(column == OBS)
        first = stop - length
        if length > self._past + stop:
            raise ValueError(f"a history of {length} {column} needs a longer lookback than {self._past} steps")
        rows, slots = self._observed
        is_there = self._xp.arange(first, stop) >= (self._episode_start[slots] - rows)[:, None]
        values = self._recent(self._arrays.obs if column == OBS else self._arrays.steps[column], first, stop)
        for leaf in nested.leaves(values):
            leaf[~is_there] = 0
        return values, is_there

    def running_episode(self, slot: int) -> SingleAgentEpisode:
        """Return a view of the current chunk of a slot's episode, without a step whose result is pending."""
        arrays = self._arrays
        start, end = int(self._episode_start[slot]), self._row_of(slot)
        first = max(start, self._past)
        seen_before = first - max(start, 0) if start < self._past else 0
        rows = slice(first - seen_before, end)
        columns = {name: nested.take(column, (rows, slot)) for name, column in arrays.steps.items()}
        infos = [self._infos.at(row, slot) for row in range(rows.start, end + 1)] if self._infos else None
        terminated, truncated = self._ends_now(slot)
        return SingleAgentEpisode.from_columns(
            id_=self._episode_id(slot, self._number_now(slot)),
            observations=nested.take(arrays.held_obs, (slice(rows.start, end + 1), slot)),
            actions=columns.pop(ACTIONS),
            rewards=columns.pop(REWARDS),
            extra_model_outputs=columns,
            infos=infos,
            terminated=terminated,
            truncated=truncated,
            t_started=first - start,
            len_lookback_buffer=seen_before,
        )

    # -- cutting ---------------------------------------------------------------------------------------------------

    def cut(self, complete: AddColumns = lambda columns: None) -> Fragment:
        """Return the steps so far: a block of chunks, slot by slot.

        Running episodes continue in the next fragment, whose chunks follow these.

        Args:
            complete: adds columns to given ones, for the fragment and for its lookback.
        """
        arrays, host = self._arrays, self._xp.to_host
        chunks = Chunks.of(self._is_step(), self._xp)
        slots, ends = chunks.slot, self._past + chunks.t_end
        t_started = self._xp.where(chunks.t_start == 0, self._t_at_start[slots], 0)
        numbers = host(self._numbers_at(chunks.t_start, slots))
        columns, raw_obs = columns_of(arrays, chunks, slice(self._past, self._past + chunks.num_steps))
        if len(chunks):  # before the first step there may be no outputs to complete
            complete(columns)
        block = ColumnBlock(
            columns=columns,
            lengths=host(chunks.lengths),
            is_terminated=host(arrays.is_terminated[ends, slots]),
            is_truncated=host(arrays.is_truncated[ends, slots]),
            t_started=host(t_started),
            episode_ids=[self._episode_id(*key) for key in zip(slots.tolist(), numbers.tolist(), strict=True)],
            lookback=lookback_of(arrays, chunks, t_started, self._past, complete),
            infos=self._infos.of_chunks(slots, self._past + chunks.t_start) if self._infos else None,
            module_id=self.module_id,
            agents=self._agents(chunks, numbers.tolist()),
        )
        self._begin_next_fragment()
        return Fragment(block, raw_obs, chunks, numbers)

    def _begin_next_fragment(self) -> None:
        """Move the lookback, and the rows of the newest observations, to the start."""
        has_steps = self._past > 0 or self._acts_before_result
        self._arrays.move_to_start(self._newest_rows(self._past + 1), self._past + 1, has_steps)
        if self._infos:
            self._infos.move_newest(self._row_of, self._past)
        self._t_at_start = self._row - self._episode_start
        self._episode_start = self._past - self._t_at_start
        self._row = self._first_rows()

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the state between fragments: newest observations, lookback rows and counters of running episodes.

        Values of infos that checkpoints cannot hold are dropped.
        """
        counters = {key: np.array(self._xp.to_host(getattr(self, name))) for key, name in self._counters.items()}
        steps_and_infos = {"steps": self._saved_steps(), "infos": self._saved_infos()}
        return self._arrays.get_state(self._past + 1) | steps_and_infos | counters

    def _saved_steps(self) -> dict[str, Column]:
        """Return the rows of step columns that the next fragment depends on."""
        return {name: self._arrays.saved(column, self._past) for name, column in self._arrays.steps.items()}

    def _saved_infos(self) -> list[list[Any]]:
        """Return the slot and the info of each newest observation that has one."""
        if not self._infos:
            return []
        try:
            newest = [(slot, self._infos.at(self._row_of(slot), slot)) for slot in range(self.max_rows)]
        except (RunFailure, LookupError, TypeError):  # infos without a value for each sub-environment
            return []
        return [[slot, storable_info(info)] for slot, info in newest if info]

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state` with the same slots and H."""
        self.clear()
        self._arrays.set_state(state)
        for key, name in self._counters.items():
            setattr(self, name, self._xp.from_host(np.array(state[key])))
        for slot, info in state.get("infos", ()):  # earlier checkpoints have them with several agents only
            self._infos.of_slot[self._row_of(slot), slot] = dict(info)
