"""The rows that a vector environment yields, written in place step by step and cut into a column block.

Rows are `[T, N]` (time, sub-environment) in arrays that are allocated once. A sub-environment that is done is reset
by the vector environment's next step (gymnasium's NEXT_STEP mode): that step's row is no env step, its `obs` row is
the final observation of the finished episode. So the observations of a sub-environment, read along time, are already
the list layout of a `ColumnBlock` (one row more per episode), and a fragment becomes a block by one gather a column.

The first H rows repeat the last H steps of the fragment before (the lookback).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.episodes import SingleAgentEpisode
from runner.episodes.columns import ACTIONS, OBS, REWARDS, Array, ColumnBlock

# What a vector environment returns as infos: one dict a sub-environment, or gymnasium's dict of arrays.
Infos = Mapping[str, Any] | Sequence[Mapping[str, Any]]

# Adds columns, computed from those that are there.
AddColumns = Callable[[dict[str, Array]], None]

_GROWTH = 1.5


@dataclass(frozen=True)
class FinishedEpisodes:
    """Episodes that ended in a fragment, in the order of their ends: (F,) returns, lengths, sub-environments."""

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    env_of: npt.NDArray[np.int64]


class RolloutBuffer(Sequence[SingleAgentEpisode]):
    """`[T, N]` rows of N sub-environments; as a sequence, the N running episodes as views into these rows.

    Args:
        num_envs: N.
        observation_shape: shape of one observation.
        observation_dtype: its dtype.
        id_prefix: ids of episodes are `<prefix>-<sub-environment>-<number>`.
        num_lookback: H, past steps that running episodes and cut chunks can see.
    """

    def __init__(
        self,
        num_envs: int,
        observation_shape: tuple[int, ...],
        observation_dtype: npt.DTypeLike,
        id_prefix: str,
        num_lookback: int,
    ) -> None:
        self.num_envs = num_envs
        self._id_prefix = id_prefix
        self._past = num_lookback
        self._capacity = 1
        rows = num_lookback + 1
        self.obs: Array = np.zeros((rows + 1, num_envs, *observation_shape), observation_dtype)
        self._steps: dict[str, Array] = {}
        self._is_terminated = np.zeros((rows, num_envs), np.bool_)
        self._is_truncated = np.zeros((rows, num_envs), np.bool_)
        self._is_done = np.zeros((rows, num_envs), np.bool_)
        self._infos: list[tuple[int, Infos]] = []
        self.clear()

    def clear(self) -> None:
        """Forget everything: all sub-environments are about to be reset."""
        self.t = 0
        self.num_env_steps = 0
        self.awaits_reset = np.zeros(self.num_envs, np.bool_)
        self._episode_number = np.zeros(self.num_envs, np.int64)
        self._t_at_start = np.zeros(self.num_envs, np.int64)
        self._terminated_at_start = np.zeros(self.num_envs, np.bool_)
        self._truncated_at_start = np.zeros(self.num_envs, np.bool_)
        self._reset_at_start = np.zeros(self.num_envs, np.bool_)
        self._return_at_start = np.zeros(self.num_envs, np.float64)
        self._first_row = np.full(self.num_envs, self._past, np.int64)
        self._infos.clear()

    # -- writing -------------------------------------------------------------------------------------------------

    @property
    def current_obs(self) -> Array:
        """(N, ...) the newest observations; writes go into the buffer."""
        newest: Array = self.obs[self._past + self.t]
        return newest

    def add_reset(self, obs: Array, infos: Infos) -> None:
        """Row 0 of the first fragment: the observations that all sub-environments were reset to."""
        self.current_obs[...] = obs
        if infos:
            self._infos.append((0, infos))

    def add_step(
        self,
        obs: Array,
        rewards: Array,
        terminateds: npt.NDArray[np.bool_],
        truncateds: npt.NDArray[np.bool_],
        infos: Infos,
        outputs: Mapping[str, Array],
    ) -> None:
        """One vector step: what was done on the newest observations (`outputs`: actions and more), what came of it.

        All arrays are (N, ...) and are copied.
        """
        if self.t == self._capacity or not self._steps:
            self._reserve(outputs)
        row = self._past + self.t
        steps = self._steps
        for name, values in outputs.items():
            steps[name][row] = values
        steps[REWARDS][row] = rewards
        self._is_terminated[row] = terminateds
        self._is_truncated[row] = truncateds
        num_resets = int(np.count_nonzero(self.awaits_reset))
        self.num_env_steps += self.num_envs - num_resets
        if num_resets:
            self._first_row[self.awaits_reset] = row + 1
        self.awaits_reset = np.logical_or(terminateds, truncateds, out=self._is_done[row])
        self.t += 1
        self.obs[row + 1] = obs
        if infos:
            self._infos.append((self.t, infos))

    def _reserve(self, outputs: Mapping[str, Array]) -> None:
        if not self._steps:
            rows = len(self._is_done)
            self._steps = {name: np.zeros((rows, *array.shape), array.dtype) for name, array in outputs.items()}
            self._steps[REWARDS] = np.zeros((rows, self.num_envs), np.float32)
        if self.t == self._capacity:
            self.reserve(int(self._capacity * _GROWTH) + 1)

    def reserve(self, num_steps: int) -> None:
        """Make room for `num_steps` vector steps in a fragment."""
        more = num_steps - self._capacity
        if more <= 0:
            return
        self._capacity = num_steps
        self.obs = _grown(self.obs, more)
        self._steps = {name: _grown(array, more) for name, array in self._steps.items()}
        self._is_terminated = _grown(self._is_terminated, more)
        self._is_truncated = _grown(self._is_truncated, more)
        self._is_done = _grown(self._is_done, more)
        if self.t:  # keep pointing into the live array
            self.awaits_reset = self._is_done[self._past + self.t - 1]

    # -- running episodes as views ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.num_envs

    def __getitem__(self, index: int) -> SingleAgentEpisode:  # type: ignore[override]
        if not -self.num_envs <= index < self.num_envs:
            raise IndexError(f"sub-environment {index} of {self.num_envs}")
        env = index % self.num_envs
        end = self._past + self.t
        terminated = self._is_terminated[end - 1] if self.t else self._terminated_at_start
        truncated = self._is_truncated[end - 1] if self.t else self._truncated_at_start
        first = int(self._first_row[env])
        is_new = first > self._past
        seen_before = 0 if is_new else min(self._past, int(self._t_at_start[env]))
        rows = slice(min(first, end) - seen_before, end)
        return SingleAgentEpisode.from_columns(
            id_=self._episode_id(env, self._number_now(env)),
            observations=self.obs[rows.start : end + 1, env],
            actions=self._view(ACTIONS, rows, env),
            rewards=self._view(REWARDS, rows, env),
            extra_model_outputs={
                name: array[rows, env] for name, array in self._steps.items() if name not in (ACTIONS, REWARDS)
            },
            infos=self._running_infos(env, first, seen_before),
            terminated=bool(terminated[env]),
            truncated=bool(truncated[env]),
            t_started=0 if is_new else int(self._t_at_start[env]),
            len_lookback_buffer=seen_before,
        )

    def _view(self, name: str, rows: slice, env: int) -> Array:
        return self._steps[name][rows, env] if self._steps else np.zeros(0, np.float32)

    def _running_infos(self, env: int, first: int, num_before: int) -> list[dict[str, Any]] | None:
        if not self._infos:
            return None
        infos = _VectorInfos(self._infos, np.array([env]), np.array([first - self._past]))
        return infos.rows_of(0, num_before, max(0, self._past + self.t - first) + 1)

    def _number_now(self, env: int) -> int:
        resets = self._reset_rows()[:, env].sum() if self.t else 0
        return int(self._episode_number[env] + resets)

    def _episode_id(self, env: int, number: int) -> str:
        return f"{self._id_prefix}-{env}-{number}"

    # -- cutting ---------------------------------------------------------------------------------------------------

    def _reset_rows(self) -> npt.NDArray[np.bool_]:
        """(T, N) rows whose vector step was the reset of the sub-environment."""
        done = self._is_done[self._past : self._past + self.t]
        resets = np.empty_like(done)
        resets[0] = self._reset_at_start
        resets[1:] = done[:-1]
        return resets

    def cut(self, complete: AddColumns = lambda columns: None) -> tuple[ColumnBlock, FinishedEpisodes]:
        """The fragment so far as a block of chunks (sub-environment by sub-environment), and the episodes that ended.

        Nothing is lost: running episodes go on in the next fragment, whose chunks continue these.

        Args:
            complete: adds columns to given ones, for the fragment and for its lookback.
        """
        num_steps = self.t
        window = slice(self._past, self._past + num_steps)
        resets = self._reset_rows()
        is_step = ~resets
        is_end = self._is_done[window] & is_step
        is_end[-1] |= is_step[-1]
        is_start = is_step.copy()
        is_start[1:] &= resets[:-1]

        env_major_ends = np.flatnonzero(is_end.T)
        env_of, t_end = np.divmod(env_major_ends, num_steps)
        t_start = np.flatnonzero(is_start.T) % num_steps
        lengths = t_end - t_start + 1
        continues = t_start == 0
        t_started = np.where(continues, self._t_at_start[env_of], 0)
        numbers = self._episode_number[env_of] + np.cumsum(resets, axis=0)[t_start, env_of]

        columns = self._gather_columns(is_step, is_end, window)
        complete(columns)
        block = ColumnBlock(
            columns=columns,
            lengths=lengths,
            is_terminated=self._is_terminated[window][t_end, env_of],
            is_truncated=self._is_truncated[window][t_end, env_of],
            t_started=t_started,
            episode_ids=[self._episode_id(*key) for key in zip(env_of.tolist(), numbers.tolist(), strict=True)],
            lookback=self._lookback(env_of, np.where(continues, np.minimum(t_started, self._past), 0), complete),
            infos=_VectorInfos(list(self._infos), env_of, t_start) if self._infos else None,
        )
        finished = self._finish_episodes(block, env_of, t_end, continues)
        self._begin_next_fragment(resets)
        return block, finished

    def _gather_columns(
        self, is_step: npt.NDArray[np.bool_], is_end: npt.NDArray[np.bool_], window: slice
    ) -> dict[str, Array]:
        num_steps, num_envs = is_step.shape
        keep_obs = np.zeros((num_steps + 1, num_envs), np.bool_)
        keep_obs[:-1] = is_step
        keep_obs[1:] |= is_end
        step_rows = _time_major_rows(is_step)
        columns = {OBS: _flat(self.obs[window.start : window.stop + 1])[_time_major_rows(keep_obs)]}
        return columns | {name: _flat(array[window])[step_rows] for name, array in self._steps.items()}

    def _lookback(self, env_of: Array, num_before: Array, complete: AddColumns) -> _PastRows | None:
        if not num_before.any():
            return None
        past = {OBS: self.obs, **self._steps}
        rows = {name: _flat(array[: self._past]).copy() for name, array in past.items()}
        complete(rows)
        shape = (self._past, self.num_envs)
        columns = {name: array.reshape(*shape, *array.shape[1:]) for name, array in rows.items()}
        return _PastRows(columns, env_of, num_before)

    def _finish_episodes(self, block: ColumnBlock, env_of: Array, t_end: Array, continues: Array) -> FinishedEpisodes:
        if len(block) == 0:
            return FinishedEpisodes(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64))
        returns = np.add.reduceat(block.columns[REWARDS].astype(np.float64), block.offsets[:-1])
        returns += np.where(continues, self._return_at_start[env_of], 0.0)
        is_done = block.is_terminated | block.is_truncated
        self._return_at_start[:] = 0.0
        self._return_at_start[env_of[~is_done]] = returns[~is_done]
        in_time = np.argsort(t_end[is_done], kind="stable")
        lengths = (block.t_started + block.lengths)[is_done]
        return FinishedEpisodes(returns[is_done][in_time], lengths[in_time], env_of[is_done][in_time])

    def _begin_next_fragment(self, resets: npt.NDArray[np.bool_]) -> None:
        end = self._past + self.t
        was_reset = resets.any(axis=0)
        steps_since_reset = np.argmax(resets[::-1], axis=0)
        self._t_at_start = np.where(was_reset, steps_since_reset, self._t_at_start + self.t)
        self._episode_number += resets.sum(axis=0)
        self._terminated_at_start = self._is_terminated[end - 1].copy()
        self._truncated_at_start = self._is_truncated[end - 1].copy()
        for array in (self.obs, *self._steps.values()):
            array[: self._past] = array[end - self._past : end].copy()
        self.obs[self._past] = self.obs[end]
        self._reset_at_start = self.awaits_reset = self.awaits_reset.copy()
        self._first_row[:] = self._past
        self._infos = [(0, infos) for t, infos in self._infos if t == self.t]  # those of the newest observations
        self.t = 0
        self.num_env_steps = 0

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """State between two fragments: newest observations, lookback rows and the counters of running episodes."""
        past = {OBS: self.obs[: self._past + 1]} | {name: rows[: self._past] for name, rows in self._steps.items()}
        return {
            "rows": {name: rows.copy() for name, rows in past.items()},
            "episode_number": self._episode_number.copy(),
            "t_at_start": self._t_at_start.copy(),
            "terminated_at_start": self._terminated_at_start.copy(),
            "truncated_at_start": self._truncated_at_start.copy(),
            "return_at_start": self._return_at_start.copy(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state` with the same N and H."""
        self.clear()
        rows = dict(state["rows"])
        self.obs[: self._past + 1] = rows.pop(OBS)
        num_rows = len(self._is_done)
        self._steps = {
            name: np.concatenate((past, np.zeros((num_rows - len(past), *past.shape[1:]), past.dtype)))
            for name, past in rows.items()
        }
        self._episode_number[:] = state["episode_number"]
        self._t_at_start[:] = state["t_at_start"]
        self._return_at_start[:] = state["return_at_start"]
        self._terminated_at_start[:] = state["terminated_at_start"]
        self._truncated_at_start[:] = state["truncated_at_start"]
        self._reset_at_start = self.awaits_reset = self._terminated_at_start | self._truncated_at_start


@dataclass(frozen=True)
class _PastRows:
    """The lookback of a cut fragment: `columns` are (H, N, ...), the newest past step last."""

    columns: Mapping[str, Array]
    env_of: Array
    num_before: Array

    def num_steps_before(self, chunk: int) -> int:
        return int(self.num_before[chunk])

    def columns_before(self, chunk: int) -> Mapping[str, Array]:
        rows = slice(-int(self.num_before[chunk]), None)
        return {name: column[rows, self.env_of[chunk]] for name, column in self.columns.items()}


@dataclass(frozen=True)
class _VectorInfos:
    """Infos as the vector environment returned them, (row, infos); taken apart per chunk when asked for."""

    by_row: Sequence[tuple[int, Infos]]
    env_of: Array
    t_start: Array

    def rows_of(self, chunk: int, num_before: int, num_rows: int) -> list[dict[str, Any]] | None:
        rows: list[dict[str, Any]] = [{} for _ in range(num_before + num_rows)]
        first = int(self.t_start[chunk])
        for t, infos in self.by_row:
            if first <= t < first + num_rows:
                rows[num_before + t - first] = _info_of(infos, int(self.env_of[chunk]))
        return rows


def _info_of(infos: Infos, env: int) -> dict[str, Any]:
    """The info of one sub-environment, out of a list or gymnasium's dict of arrays (`_key`: for whom `key` holds)."""
    if not isinstance(infos, Mapping):
        return dict(infos[env])
    own: dict[str, Any] = {}
    for key, values in infos.items():
        is_valid = infos.get(f"_{key}")
        if key.startswith("_") and key[1:] in infos:
            continue
        if is_valid is not None and not is_valid[env]:
            continue
        own[key] = _info_of(values, env) if isinstance(values, Mapping) else values[env]
    return own


def _grown(array: Array, more: int) -> Array:
    return np.concatenate((array, np.zeros((more, *array.shape[1:]), array.dtype)))


def _flat(rows: Array) -> Array:
    return rows.reshape(-1, *rows.shape[2:])


def _time_major_rows(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Indices of the true entries of a (T, N) mask into the flattened (T * N) rows, ordered by n, then t."""
    env, t = np.divmod(np.flatnonzero(mask.T), mask.shape[0])
    rows: npt.NDArray[np.int64] = t * mask.shape[1] + env
    return rows
