"""The rows that a vector environment yields, written in place step by step and cut into a column block.

Rows are `[T, N]` (time, sub-environment) in arrays that are allocated once. A sub-environment that is done is reset
by the vector environment's next step (gymnasium's NEXT_STEP mode): that step's row is no env step but a gap, its
`obs` row is the final observation of the finished episode.

The first H rows repeat the last H steps of the fragment before (the lookback).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.env_runners.chunks import Chunks, PastRows, copied, flat_rows, grown
from runner.env_runners.fragment_checks import OutsideObservations
from runner.episodes import SingleAgentEpisode, nested
from runner.episodes.columns import ACTIONS, OBS, REWARDS, Array, Column, ColumnBlock

# What a vector environment returns as infos: one dict a sub-environment, or gymnasium's dict of arrays.
Infos = Mapping[str, Any] | Sequence[Mapping[str, Any]]

# Adds columns that are computed from the columns it gets.
AddColumns = Callable[[dict[str, Column]], None]

_GROWTH = 1.5


@dataclass(frozen=True)
class FinishedEpisodes:
    """Episodes that ended in a fragment, in the order of their ends: (F,) returns, lengths, sub-environments.

    With several agents a return is the sum over the agents; `by_agent` and `by_module` (agent or module id ->
    returns) hold each agent's own. `outside` counts observations of all steps, also of episodes that have not ended.
    """

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    env_of: npt.NDArray[np.int64]
    by_agent: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    by_module: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    outside: OutsideObservations = field(default_factory=OutsideObservations)

    @classmethod
    def concatenated(cls, parts: Sequence[FinishedEpisodes]) -> FinishedEpisodes:
        """Return the episodes of all parts, one after the other."""
        return cls(
            np.concatenate([part.returns for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.env_of for part in parts]),
            _joined([part.by_agent for part in parts]),
            _joined([part.by_module for part in parts]),
            OutsideObservations.total([part.outside for part in parts]),
        )


@dataclass(frozen=True)
class Fragment:
    """What a cut yields.

    Attributes:
        block: E chunks of episodes.
        finished: the episodes that ended.
        raw_obs: the block's observations as the environment returned them.
        env_of: (E,) int64, sub-environment of each chunk.
        episode_numbers: (E,) int64, which episode of its sub-environment each chunk is of, from 0.
    """

    block: ColumnBlock
    finished: FinishedEpisodes
    raw_obs: Column
    env_of: npt.NDArray[np.int64]
    episode_numbers: npt.NDArray[np.int64]


class RolloutBuffer(Sequence[SingleAgentEpisode]):
    """`[T, N]` rows of N sub-environments; as a sequence, the N running episodes as views into these rows.

    Args:
        num_envs: N.
        blank_obs, blank_action: an observation and an action with the structure, shapes and dtypes of their spaces.
        id_prefix: ids of episodes are `<prefix>-<sub-environment>-<number>`.
        num_lookback: H, past steps that running episodes and cut chunks can see.
    """

    def __init__(
        self,
        num_envs: int,
        blank_obs: Any,
        blank_action: Any,
        id_prefix: str,
        num_lookback: int,
    ) -> None:
        self.num_envs = num_envs
        self._id_prefix = id_prefix
        self._past = num_lookback
        self._capacity = 1
        rows = num_lookback + 1
        self.obs: Column = nested.zeros(blank_obs, (rows + 1, num_envs))
        self._written_obs: Column | None = None
        self._steps: dict[str, Column] = {
            ACTIONS: nested.zeros(blank_action, (rows, num_envs)),
            REWARDS: np.zeros((rows, num_envs), np.float32),
        }
        self._is_terminated = np.zeros((rows, num_envs), np.bool_)
        self._is_truncated = np.zeros((rows, num_envs), np.bool_)
        self._is_done = np.zeros((rows, num_envs), np.bool_)
        self._knows_outputs = False
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
        self._episode_start = self._first_row.copy()  # may lie before row 0
        self._infos.clear()

    # -- writing -------------------------------------------------------------------------------------------------

    @property
    def current_obs(self) -> Column:
        """The newest observations (N, ...) as the environment returned them."""
        return nested.take(self.obs, self._past + self.t)

    @property
    def starts_episode(self) -> npt.NDArray[np.bool_]:
        """Whether (N,) the newest observation is an episode's first."""
        is_first: npt.NDArray[np.bool_] = self._episode_start == self._past + self.t
        return is_first

    def newest_step(self, column: str) -> Column | None:
        """Return the newest row (N, ...) of a step column; None while there is none."""
        if column not in self._steps or self._past + self.t == 0:
            return None
        return nested.take(self._steps[column], self._past + self.t - 1)

    def write_obs(self, obs: Column) -> None:
        """Let the episodes hold `obs` (N, ...) in the place of the newest observations, from here to the learner."""
        if self._written_obs is None:
            num_rows = len(self._is_done) + 1
            self._written_obs = nested.map_leaves(lambda leaf: np.zeros((num_rows, *leaf.shape), leaf.dtype), obs)
        nested.assign(self._written_obs, self._past + self.t, obs)

    def add_reset(self, obs: Column, infos: Infos) -> None:
        """Write row 0 of the first fragment: the observations that all sub-environments were reset to."""
        nested.assign(self.obs, self._past + self.t, obs)
        if infos:
            self._infos.append((0, infos))

    def add_step(
        self,
        obs: Column,
        rewards: Array,
        terminateds: npt.NDArray[np.bool_],
        truncateds: npt.NDArray[np.bool_],
        infos: Infos,
        outputs: Mapping[str, Column],
    ) -> None:
        """Write one vector step: what was done on the newest observations (`outputs`: actions and more) and the result.

        All arrays are (N, ...) and are copied.
        """
        if self.t == self._capacity:
            self.reserve(int(self._capacity * _GROWTH) + 1)
        if not self._knows_outputs:
            self._add_columns(outputs)
        row = self._past + self.t
        steps = self._steps
        for name, values in outputs.items():
            nested.assign(steps[name], row, values)
        steps[REWARDS][row] = rewards
        self._is_terminated[row] = terminateds
        self._is_truncated[row] = truncateds
        num_resets = int(np.count_nonzero(self.awaits_reset))
        self.num_env_steps += self.num_envs - num_resets
        if num_resets:
            self._first_row[self.awaits_reset] = row + 1
            self._episode_start[self.awaits_reset] = row + 1
        self.awaits_reset = np.logical_or(terminateds, truncateds, out=self._is_done[row])
        self.t += 1
        nested.assign(self.obs, row + 1, obs)
        if infos:
            self._infos.append((self.t, infos))

    def _add_columns(self, outputs: Mapping[str, Column]) -> None:
        rows = len(self._is_done)
        for name, values in outputs.items():
            if name not in self._steps:
                self._steps[name] = nested.map_leaves(lambda leaf: np.zeros((rows, *leaf.shape), leaf.dtype), values)
        self._knows_outputs = True

    def reserve(self, num_steps: int) -> None:
        """Make room for `num_steps` vector steps in a fragment."""
        more = num_steps - self._capacity
        if more <= 0:
            return
        self._capacity = num_steps
        self.obs = grown(self.obs, more)
        if self._written_obs is not None:
            self._written_obs = grown(self._written_obs, more)
        self._steps = {name: grown(column, more) for name, column in self._steps.items()}
        self._is_terminated = grown(self._is_terminated, more)
        self._is_truncated = grown(self._is_truncated, more)
        self._is_done = grown(self._is_done, more)
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
            observations=nested.take(self._held_obs, (slice(rows.start, end + 1), env)),
            actions=nested.take(self._steps[ACTIONS], (rows, env)),
            rewards=self._steps[REWARDS][rows, env],
            extra_model_outputs={
                name: nested.take(column, (rows, env))
                for name, column in self._steps.items()
                if name not in (ACTIONS, REWARDS)
            },
            infos=self._running_infos(env, first, seen_before),
            terminated=bool(terminated[env]),
            truncated=bool(truncated[env]),
            t_started=0 if is_new else int(self._t_at_start[env]),
            len_lookback_buffer=seen_before,
        )

    @property
    def _held_obs(self) -> Column:
        """The observations that the episodes hold: the environment's, or what a piece wrote in their place."""
        return self.obs if self._written_obs is None else self._written_obs

    def history(self, column: str, length: int) -> tuple[Column, npt.NDArray[np.bool_]]:
        """Return what the running episodes saw or did last.

        Args:
            column: `obs`: as the environment returned them, up to the newest; or a step column: what was done before
                the newest observation.
            length: of the history, at most H + 1 observations or H steps.

        Returns:
            (N, length, ...) values, oldest first, and (N, length) whether each lies within the running episode;
            values are 0 where not.

        Raises:
            ValueError: the lookback is too short.
        """
        end = self._past + self.t + (column == OBS)
        if length > end:
            raise ValueError(f"a history of {length} {column} needs a longer lookback than {self._past} steps")
        rows = np.arange(end - length, end)
        is_there = rows >= self._episode_start[:, None]
        source = self.obs if column == OBS else self._steps[column]
        return nested.map_leaves(lambda array: _history_rows(array, rows[0], end, is_there), source), is_there

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
        """Return the rows (T, N) whose vector step was the reset of the sub-environment."""
        done = self._is_done[self._past : self._past + self.t]
        resets = np.empty_like(done)
        resets[0] = self._reset_at_start
        resets[1:] = done[:-1]
        return resets

    def cut(self, complete: AddColumns = lambda columns: None) -> Fragment:
        """Return the fragment so far: a block of chunks, sub-environment by sub-environment, and the episodes that
        ended.

        Nothing is lost: running episodes go on in the next fragment, whose chunks continue these.

        Args:
            complete: adds columns to given ones, for the fragment and for its lookback.
        """
        window = slice(self._past, self._past + self.t)
        obs_window = slice(window.start, window.stop + 1)
        resets = self._reset_rows()
        chunks = Chunks.of(~resets)
        env_of, t_start = chunks.slot, chunks.t_start
        continues = t_start == 0
        t_started = np.where(continues, self._t_at_start[env_of], 0)
        numbers = self._episode_number[env_of] + np.cumsum(resets, axis=0)[t_start, env_of]

        raw_obs = flat_rows(self.obs, obs_window, chunks.obs_rows)
        is_raw = self._written_obs is None
        columns = {OBS: raw_obs if is_raw else flat_rows(self._written_obs, obs_window, chunks.obs_rows)}
        columns |= {name: flat_rows(column, window, chunks.step_rows) for name, column in self._steps.items()}
        complete(columns)
        block = ColumnBlock(
            columns=columns,
            lengths=chunks.lengths,
            is_terminated=self._is_terminated[window][chunks.t_end, env_of],
            is_truncated=self._is_truncated[window][chunks.t_end, env_of],
            t_started=t_started,
            episode_ids=[self._episode_id(*key) for key in zip(env_of.tolist(), numbers.tolist(), strict=True)],
            lookback=self._lookback(env_of, np.where(continues, np.minimum(t_started, self._past), 0), complete),
            infos=_VectorInfos(list(self._infos), env_of, t_start) if self._infos else None,
        )
        finished = self._finish_episodes(block, chunks, continues)
        self._begin_next_fragment(resets)
        return Fragment(block, finished, raw_obs, env_of, numbers)

    def _lookback(self, env_of: Array, num_before: Array, complete: AddColumns) -> PastRows | None:
        if not num_before.any():
            return None
        past = {OBS: self._held_obs, **self._steps}
        every = np.arange(self._past * self.num_envs)
        rows = {name: flat_rows(column, slice(self._past), every) for name, column in past.items()}
        complete(rows)

        def unflat(array: Array) -> Array:
            return array.reshape(self._past, self.num_envs, *array.shape[1:])

        columns = {name: nested.map_leaves(unflat, column) for name, column in rows.items()}
        return PastRows(columns, env_of, num_before)

    def _finish_episodes(self, block: ColumnBlock, chunks: Chunks, continues: Array) -> FinishedEpisodes:
        if len(block) == 0:
            return FinishedEpisodes(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64))
        env_of = chunks.slot
        returns = np.add.reduceat(block.columns[REWARDS].astype(np.float64), block.offsets[:-1])
        returns += np.where(continues, self._return_at_start[env_of], 0.0)
        is_done = block.is_terminated | block.is_truncated
        self._return_at_start[:] = 0.0
        self._return_at_start[env_of[~is_done]] = returns[~is_done]
        in_time = np.argsort(chunks.t_end[is_done], kind="stable")
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
        first = end - self._past
        nested.assign(self.obs, slice(self._past + 1), copied(nested.take(self.obs, slice(first, end + 1))))
        if self._written_obs is not None:
            written = copied(nested.take(self._written_obs, slice(first, end + 1)))
            nested.assign(self._written_obs, slice(self._past + 1), written)
        for column in self._steps.values():
            nested.assign(column, slice(self._past), copied(nested.take(column, slice(first, end))))
        self._reset_at_start = self.awaits_reset = self.awaits_reset.copy()
        self._first_row[:] = self._past
        self._episode_start = self._past - self._t_at_start
        self._infos = [(0, infos) for t, infos in self._infos if t == self.t]  # the newest observations'
        self.t = 0
        self.num_env_steps = 0

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the state between fragments: newest observations, lookback rows and counters of running episodes."""
        past = slice(self._past)
        newest = slice(self._past + 1)
        return {
            "obs": copied(nested.take(self.obs, newest)),
            "written_obs": None if self._written_obs is None else copied(nested.take(self._written_obs, newest)),
            "steps": {name: copied(nested.take(column, past)) for name, column in self._steps.items()},
            "episode_number": self._episode_number.copy(),
            "t_at_start": self._t_at_start.copy(),
            "terminated_at_start": self._terminated_at_start.copy(),
            "truncated_at_start": self._truncated_at_start.copy(),
            "return_at_start": self._return_at_start.copy(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state` with the same N and H."""
        self.clear()
        num_rows = len(self._is_done)
        nested.assign(self.obs, slice(self._past + 1), state["obs"])
        if state["written_obs"] is not None:
            self._written_obs = grown(state["written_obs"], num_rows - self._past)
        self._steps = {name: grown(past, num_rows - self._past) for name, past in state["steps"].items()}
        self._knows_outputs = False
        self._episode_number[:] = state["episode_number"]
        self._t_at_start[:] = state["t_at_start"]
        self._episode_start = self._past - self._t_at_start
        self._return_at_start[:] = state["return_at_start"]
        self._terminated_at_start[:] = state["terminated_at_start"]
        self._truncated_at_start[:] = state["truncated_at_start"]
        self._reset_at_start = self.awaits_reset = self._terminated_at_start | self._truncated_at_start


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


def _joined(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    keys = dict.fromkeys(key for part in parts for key in part)
    return {key: np.concatenate([part[key] for part in parts if key in part]) for key in keys}


def _info_of(infos: Infos, env: int) -> dict[str, Any]:
    """Return the info of one sub-environment, out of a list or gymnasium's dict of arrays (`_key`: for whom `key`
    holds)."""
    if not isinstance(infos, Mapping):
        return dict(infos[env])
    info: dict[str, Any] = {}
    for key, values in infos.items():
        is_valid = infos.get(f"_{key}")
        if key.startswith("_") and key[1:] in infos:
            continue
        if is_valid is not None and not is_valid[env]:
            continue
        info[key] = _info_of(values, env) if isinstance(values, Mapping) else values[env]
    return info


def _history_rows(array: Array, start: int, end: int, is_there: npt.NDArray[np.bool_]) -> Array:
    """Return the rows (N, end - start, ...) of a (T, N, ...) array, 0 where not `is_there`."""
    rows = array[start:end].swapaxes(0, 1).copy()
    rows[~is_there] = 0
    return rows
