"""Rows of sub-environments that are stepped together, with one agent each.

A sub-environment whose episode is over is reset by the vector environment's next step (gymnasium's NEXT_STEP mode). The
row of that step is not an env step but the gap after the episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from runner.episodes import SingleAgentEpisode, nested
from runner.episodes.columns import OBS, REWARDS, Column, ColumnBlock
from runner.rows.array_namespace import NUMPY, Array, ArrayNamespace
from runner.rows.chunks import flattened, without_gaps
from runner.rows.finished_episodes import FinishedEpisodes, RunningReturns
from runner.rows.fragments import AddColumns, Fragment
from runner.rows.infos import Infos
from runner.rows.row_store import RowStore

_GROWTH = 1.5


@dataclass(eq=False)  # one per sample; frozen dataclasses take longer to create
class EnvFragment(Fragment):
    """A fragment of sub-environments.

    Attributes:
        env_of: sub-environment (E,) of each chunk.
        finished: the episodes that ended.
        aborted: ids of aborted episodes, which were cut short by a failure of their environment.
    """

    env_of: npt.NDArray[np.int64]
    finished: FinishedEpisodes
    aborted: Sequence[str] = ()


class LockStepRows(RowStore):
    """Rows of N sub-environments, one slot each. As a sequence, it holds their N running episodes.

    Args:
        num_envs: N.
        blank_obs, blank_action, num_lookback, xp: see `RowStore`.
        id_prefix: ids of episodes are `<prefix>-<sub-environment>-<number>`.

    Attributes:
        num_env_steps: env steps in this fragment so far.
        awaits_reset: (N,) bool, whether the episode has ended, so that the next step resets the sub-environment.
    """

    _acts_before_result = False
    _counters: ClassVar[Mapping[str, str]] = {
        "episode_number": "_number_at_start",
        "t_at_start": "_t_at_start",
        "terminated_at_start": "_terminated_at_start",
        "truncated_at_start": "_truncated_at_start",
    }

    def __init__(
        self,
        num_envs: int,
        blank_obs: Any,
        blank_action: Any,
        id_prefix: str,
        num_lookback: int,
        xp: ArrayNamespace = NUMPY,
    ) -> None:
        self._id_prefix = id_prefix
        super().__init__(num_envs, blank_obs, blank_action, num_lookback, xp)

    def clear(self) -> None:
        """See `RowStore`."""
        super().clear()
        self.num_env_steps = 0
        self.awaits_reset = self._arrays.is_gap[self._past]
        self._number_at_start = self._zeros(int)
        self._terminated_at_start, self._truncated_at_start = self._zeros(bool), self._zeros(bool)
        self._returns = RunningReturns(self.max_rows)
        self._aborted: list[str] = []

    # -- writing -------------------------------------------------------------------------------------------------

    @property
    def t(self) -> int:
        """The vector steps of this fragment so far."""
        return int(self._row) - self._past

    def add_reset(self, obs: Column, infos: Infos) -> None:
        """Write row 0 of the first fragment: the observations of all sub-environments after a reset."""
        self._xp.assign(self._arrays.obs, self._row, obs)
        if infos:
            self._infos.of_row[self._row] = infos

    def abort(self, slots: Sequence[int]) -> None:
        """Mark the next `add_step` in these slots as the first observation of another episode instead of a step."""
        for slot in slots:
            if not self.awaits_reset[slot]:
                self._aborted.append(self._episode_id(slot, self._number_now(slot)))
                self.awaits_reset[slot] = True

    def add_step(
        self,
        obs: Column,
        rewards: Array,
        terminateds: Array,
        truncateds: Array,
        infos: Infos,
        outputs: Mapping[str, Column],
    ) -> None:
        """Write one vector step: the outputs for the newest observations (actions etc.) and the results of the step.

        All arrays are (N, ...) and are copied.
        """
        xp, arrays, row, is_reset = self._xp, self._arrays, self._row, self.awaits_reset
        if row + 1 == arrays.num_rows:
            self.reserve(int(self.t * _GROWTH) + 1)
        if not arrays.knows_outputs:
            arrays.add_columns(outputs)
        assign, steps = xp.assign, arrays.steps
        for name, values in outputs.items():
            assign(steps[name], row, values)
        steps[REWARDS][row] = rewards
        arrays.is_terminated[row] = terminateds
        arrays.is_truncated[row] = truncateds
        num_resets = int(xp.count_nonzero(is_reset))
        self.num_env_steps += self.max_rows - num_resets
        self._row = row = row + 1
        if num_resets:
            self._episode_start[is_reset] = row
        self.awaits_reset = xp.logical_or(terminateds, truncateds, arrays.is_gap[row])
        assign(arrays.obs, row, obs)
        if infos:
            self._infos.of_row[row] = infos

    def reserve(self, num_steps: int) -> None:
        """Allocate space for `num_steps` vector steps in a fragment."""
        self._arrays.reserve(self._past + num_steps + 1)
        self.awaits_reset = self._arrays.is_gap[self._row]  # points into the newly allocated arrays

    # -- running episodes ------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.max_rows

    def __getitem__(self, index: int) -> SingleAgentEpisode:  # type: ignore[override]
        if not -self.max_rows <= index < self.max_rows:
            raise IndexError(f"sub-environment {index} of {self.max_rows}")
        return self.running_episode(index % self.max_rows)

    @property
    def current_obs(self) -> Column:
        """See `RunningEpisodes`; inlined because it is read in every step."""
        return nested.take(self._arrays.obs, self._row)

    def episode_return(self, index: int) -> float:
        """Return the undiscounted return so far of a sub-environment's running or just ended episode."""
        start = max(int(self._episode_start[index]), self._past)
        before = self._returns.so_far[index] if self._episode_start[index] <= self._past else 0.0
        return float(before + self._arrays.steps[REWARDS][start : int(self._row), index].sum(dtype=np.float64))

    def running_ids(self) -> list[str]:
        """Return the ids of the episodes that have not ended."""
        running = np.flatnonzero(~self._xp.to_host(self.awaits_reset)).tolist()
        return [self._episode_id(slot, self._number_now(slot)) for slot in running]

    def _first_rows(self) -> Any:
        return self._past

    @property
    def _observed(self) -> tuple[Any, Any]:
        return self._row, slice(None)

    def _recent(self, column: Column, first: int, stop: int) -> Column:
        rows = slice(self._row + first, self._row + stop)
        return nested.map_leaves(lambda array: self._xp.copy(array[rows].swapaxes(0, 1)), column)

    def _newest_rows(self, num_rows: int) -> Any:
        return slice(self._row + 1 - num_rows, self._row + 1)

    def _row_of(self, slot: int) -> int:
        return int(self._row)

    def _ends_now(self, slot: int) -> tuple[bool, bool]:
        if self.t == 0:
            return bool(self._terminated_at_start[slot]), bool(self._truncated_at_start[slot])
        newest = self._row - 1, slot
        return bool(self._arrays.is_terminated[newest]), bool(self._arrays.is_truncated[newest])

    def _episode_id(self, slot: int, number: int) -> str:
        return f"{self._id_prefix}-{slot}-{number}"

    # -- cutting ---------------------------------------------------------------------------------------------------

    def _is_step(self) -> Array:
        return ~self._gaps

    @property
    def _gaps(self) -> Array:
        return self._arrays.is_gap[self._past : self._row]

    def _numbers_at(self, t: Array, slots: Array) -> Array:
        return self._number_at_start[slots] + self._gaps.cumsum(0)[t, slots]

    def _number_now(self, slot: int) -> int:
        return int(self._number_at_start[slot] + self._gaps[:, slot].sum())

    def cut(self, complete: AddColumns = lambda columns: None) -> EnvFragment:
        """See `RowStore`; the fragment also contains the ended episodes."""
        if self.t == 1 and self.num_env_steps == self.max_rows and self._past == 0 and not self._infos:
            fragment = self._cut_single_step(complete)
            sums = fragment.block.columns[REWARDS]
        else:
            fragment = super().cut(complete)
            sums = self._xp.segment_sums(fragment.block.columns[REWARDS], fragment.chunks.lengths)
        chunks, host = fragment.chunks, self._xp.to_host
        env_of = host(chunks.slot)
        finished = self._returns.finish(fragment.block, host(sums), env_of, host(chunks.t_end), chunks.num_steps)
        aborted, self._aborted = self._aborted, []
        return EnvFragment(
            fragment.block, fragment.raw_obs, chunks, fragment.episode_numbers, env_of, finished, aborted
        )

    def _cut_single_step(self, complete: AddColumns) -> Fragment:
        """Return a fragment of one vector step without a gap or a lookback, equal to the result of `cut`.

        A general cut would take longer than the step itself, which matters for updates after each step.
        """
        arrays, copy, host = self._arrays, self._xp.copy, self._xp.to_host

        def both(array: Array) -> Array:
            return copy(flattened(array[:2].swapaxes(0, 1)))

        raw_obs = nested.map_leaves(both, arrays.obs)
        obs = raw_obs if arrays.written_obs is None else nested.map_leaves(both, arrays.written_obs)
        steps = {name: nested.map_leaves(lambda array: copy(array[0]), column) for name, column in arrays.steps.items()}
        columns: dict[str, Column] = {OBS: obs, **steps}
        complete(columns)
        chunks, numbers = without_gaps(1, self.max_rows, self._xp), host(self._number_at_start)
        self._terminated_at_start = copy(arrays.is_terminated[0])
        self._truncated_at_start = copy(arrays.is_truncated[0])
        block = ColumnBlock(
            columns=columns,
            lengths=host(chunks.lengths),
            is_terminated=host(self._terminated_at_start),
            is_truncated=host(self._truncated_at_start),
            t_started=host(self._t_at_start),
            episode_ids=[self._episode_id(*key) for key in enumerate(numbers.tolist())],
            module_id=self.module_id,
        )
        for column in (arrays.obs, arrays.written_obs, arrays.is_gap):
            if column is not None:
                nested.map_leaves(_move_row_1_to_0, column)
        self._t_at_start = 1 - self._episode_start
        self._episode_start = -self._t_at_start
        self._row = 0
        self._begin_counting()
        return Fragment(block, raw_obs, chunks, numbers)

    def _begin_next_fragment(self) -> None:
        if self.t:
            newest, copy = self._row - 1, self._xp.copy
            self._terminated_at_start = copy(self._arrays.is_terminated[newest])
            self._truncated_at_start = copy(self._arrays.is_truncated[newest])
            self._number_at_start = self._number_at_start + self._gaps.sum(0)
        super()._begin_next_fragment()
        self._begin_counting()

    def _begin_counting(self) -> None:
        self.awaits_reset = self._arrays.is_gap[self._row]
        self.num_env_steps = 0

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """See `RowStore`."""
        return super().get_state() | {"return_at_start": self._returns.so_far.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """See `RowStore`."""
        super().set_state(state)
        self._returns.so_far[:] = state["return_at_start"]
        self._episode_start = self._past - self._t_at_start
        self.awaits_reset[:] = self._terminated_at_start | self._truncated_at_start


def _move_row_1_to_0(array: Array) -> None:
    array[0] = array[1]
