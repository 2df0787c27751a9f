"""What a multi-agent episode holds, and reading it by env steps or by each agent's own steps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from runner.episodes.agent_track import AgentID
from runner.episodes.lookback_buffer import Indices, LookbackBuffer
from runner.episodes.multi_agent_fields import MultiAgentFields
from runner.episodes.nested import row_count, take, unstack
from runner.episodes.single_agent_episode import SingleAgentEpisode
from runner.episodes.spaces import one_hot

AgentDict = dict[AgentID, Any]
Field = Literal["observations", "infos", "actions", "rewards", "extra_model_outputs"]

_NOTHING: Any = object()
_MISSING = 2**62  # an index that no buffer has


class MultiAgentGetters(MultiAgentFields):
    """The getters and setters of a `MultiAgentEpisode`.

    Getters share their arguments:

    * `indices`: one int, a list or slice of them, None for all from env step 0 on. As in `LookbackBuffer.get`,
      a negative index counts from the end or, with `neg_index_as_lookback`, from env step 0 back into the
      lookback; -1 is the newest observation, but the newest *complete or begun* step for all other fields.
    * `agent_ids`: one id or several; None: all agents of this chunk. Ids that are not in it are left out.
    * `env_steps=True`: indices are env steps; an action, reward or extra output is found at the env step of
      the observation it answers. What an agent has begun but not completed is found there too: its hanging
      action, and the rewards so far. An agent without a value at one env step is left out of an int's result,
      and has fewer rows in a list of many. `env_steps=False`: each agent's own steps, hanging action last.
    * `fill`: the value at every env step (or own step) where an agent has none, inside or outside of the range.
    * `return_list=True` (env steps only): a list with one dict per env step, also for an int.

    The result is a dict by agent id: an item for an int, else a list of items or (numpy mode) columns; agents
    without any row are left out. Raises `IndexError` for an int or list index outside without `fill`, and
    what `LookbackBuffer.get` raises.
    """

    __slots__ = ()

    # --- getters ----------------------------------------------------------------------------------

    def get_observations(
        self,
        indices: Indices = None,
        agent_ids: Collection[AgentID] | AgentID | None = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> AgentDict | list[AgentDict]:
        """Return observations by agent, see the class; None: at the T + 1 env steps 0 to T."""
        query = _Query("observations", indices, neg_index_as_lookback, fill, one_hot_discrete)
        return self._get(query, agent_ids, env_steps, return_list)

    def get_infos(
        self,
        indices: Indices = None,
        agent_ids: Collection[AgentID] | AgentID | None = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> AgentDict | list[AgentDict]:
        """Return infos by agent, see the class; they belong to the observations they came with."""
        query = _Query("infos", indices, neg_index_as_lookback, fill)
        return self._get(query, agent_ids, env_steps, return_list)

    def get_actions(
        self,
        indices: Indices = None,
        agent_ids: Collection[AgentID] | AgentID | None = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> AgentDict | list[AgentDict]:
        """Return actions by agent, see the class; None: at the T env steps 0 to T - 1."""
        query = _Query("actions", indices, neg_index_as_lookback, fill, one_hot_discrete)
        return self._get(query, agent_ids, env_steps, return_list)

    def get_rewards(
        self,
        indices: Indices = None,
        agent_ids: Collection[AgentID] | AgentID | None = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> AgentDict | list[AgentDict]:
        """Return rewards by agent, see the class: for each of its steps the sum over the env steps that it took."""
        query = _Query("rewards", indices, neg_index_as_lookback, fill)
        return self._get(query, agent_ids, env_steps, return_list)

    def get_extra_model_outputs(
        self,
        key: str | None = None,
        indices: Indices = None,
        agent_ids: Collection[AgentID] | AgentID | None = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> AgentDict | list[AgentDict]:
        """Return outputs named `key` by agent, see the class; without `key` each agent's is a dict of all its outputs.

        Agents whose module has no such output are left out; `ValueError` if no agent has it but some have others.
        """
        if key is not None:
            self._check_key(key)
            query = _Query("extra_model_outputs", indices, neg_index_as_lookback, fill, key=key)
            return self._get(query, agent_ids, env_steps, return_list)
        by_key = {
            name: self._get(
                _Query("extra_model_outputs", indices, neg_index_as_lookback, fill, key=name),
                agent_ids,
                env_steps,
                return_list,
            )
            for name in self._extra_keys()
        }
        if not return_list:
            return _swap_levels(by_key)
        if not by_key:
            return [{} for _ in self._env_ts(_Query("actions", indices, neg_index_as_lookback, fill))]
        return [_swap_levels(dict(zip(by_key, step, strict=True))) for step in zip(*by_key.values(), strict=True)]

    def _extra_keys(self) -> list[str]:
        keys: dict[str, None] = {}
        for episode in self.agent_episodes.values():
            keys |= dict.fromkeys(episode.extra_model_outputs)
        for track in self._tracks.values():
            keys |= dict.fromkeys(() if track.begun is None else track.begun[1])
        return list(keys)

    def _check_key(self, key: str) -> None:
        known = self._extra_keys()
        if known and key not in known:
            raise ValueError(f"no agent of episode {self.id_} has extra_model_outputs named {key!r}; known: {known}")

    # --- setters (see LookbackBuffer.set; the number of rows never changes) -----------------------

    def set_observations(
        self,
        *,
        new_data: Mapping[AgentID, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Replace observations; `new_data` by agent, indices are each agent's own steps. `KeyError`: no such agent."""
        for episode, data in self._chosen(new_data):
            episode.set_observations(new_data=data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_actions(
        self,
        *,
        new_data: Mapping[AgentID, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Replace actions of complete steps; arguments as for `set_observations`."""
        for episode, data in self._chosen(new_data):
            episode.set_actions(new_data=data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_rewards(
        self,
        *,
        new_data: Mapping[AgentID, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Replace rewards of complete steps; arguments as for `set_observations`."""
        for episode, data in self._chosen(new_data):
            episode.set_rewards(new_data=data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_extra_model_outputs(
        self,
        *,
        key: str,
        new_data: Mapping[AgentID, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Replace outputs named `key`, which each of the agents must have; arguments as for `set_observations`."""
        for episode, data in self._chosen(new_data):
            episode.set_extra_model_outputs(
                key=key, new_data=data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback
            )

    def _chosen(self, new_data: Mapping[AgentID, Any]) -> list[tuple[SingleAgentEpisode, Any]]:
        for agent_id in new_data:
            if agent_id not in self.agent_episodes:
                known = list(self.agent_episodes)
                raise KeyError(f"agent {agent_id!r} is not in episode {self.id_}; its agents: {known}")
        return [(self.agent_episodes[agent_id], data) for agent_id, data in new_data.items()]

    # --- by env steps and by agent steps ----------------------------------------------------------

    def _get(
        self,
        query: _Query,
        agent_ids: Collection[AgentID] | AgentID | None,
        env_steps: bool,
        return_list: bool,
    ) -> AgentDict | list[AgentDict]:
        if return_list and not env_steps:
            raise ValueError(f"get_{query.field}: return_list=True is one dict per env step, it needs env_steps=True")
        chosen = self._chosen_agents(agent_ids)
        if env_steps and _is_one(query.indices):
            at_step = self._at_env_step(query, chosen)
            return [at_step] if return_list else at_step
        columns = self._columns_of(query, chosen)
        if not env_steps:
            return _by_agent_steps(query, columns)
        env_ts = self._env_ts(query)
        return self._as_list(query, columns, env_ts) if return_list else self._as_rows(query, columns, env_ts)

    def _chosen_agents(self, agent_ids: Collection[AgentID] | AgentID | None) -> Iterable[AgentID]:
        if agent_ids is None:
            return self.agent_episodes
        wanted = {agent_ids} if isinstance(agent_ids, (str, int)) else set(agent_ids)
        return [agent_id for agent_id in self.agent_episodes if agent_id in wanted]

    def _columns_of(self, query: _Query, chosen: Iterable[AgentID]) -> list[tuple[AgentID, _Column]]:
        columns = []
        for agent_id in chosen:
            column = self._column(query, agent_id)
            if column is not None:
                columns.append((agent_id, column))
        return columns

    def _column(self, query: _Query, agent_id: AgentID) -> _Column | None:
        track, field = self._tracks[agent_id], query.field
        episode = track.episode
        if field == "observations":
            return _Column(episode.observations, _NOTHING)
        if field == "infos":
            return _Column(episode.infos, _NOTHING)
        if field == "actions":
            return _Column(episode.actions, _NOTHING if track.begun is None else track.begun[0])
        if field == "rewards":
            return _Column(episode.rewards, _NOTHING if track.begun is None else track.reward)
        hanging = _NOTHING if track.begun is None else track.begun[1].get(query.key or "", _NOTHING)
        buffer = episode.extra_model_outputs.get(query.key or "")
        if buffer is None and hanging is _NOTHING:
            return None
        return _Column(LookbackBuffer() if buffer is None else buffer, hanging)

    def _num_env_rows(self, field: Field) -> int:
        return self._len_lookback_buffer + self.env_t - self.env_t_started + (field in ("observations", "infos"))

    def _env_ts(self, query: _Query) -> range | list[int]:
        """Return the (global) env steps that many indices name; without `fill` a slice is clipped to the known ones."""
        axis = LookbackBuffer(range(self._num_env_rows(query.field)), self._len_lookback_buffer)
        first = self.env_t_started - self._len_lookback_buffer
        indices = slice(None) if query.indices is None else query.indices
        if isinstance(indices, slice):
            found = axis._slice_positions(indices, query.neg, clip=query.fill is None)
            return range(first + found.start, first + found.stop, found.step)
        positions = [axis._position(index, query.neg) for index in indices]  # type: ignore[union-attr]
        if query.fill is None:
            for position, index in zip(positions, indices, strict=True):  # type: ignore[arg-type]
                self._check_inside(query, position, index)
        return [first + position for position in positions]

    def _check_inside(self, query: _Query, position: int, index: Any) -> None:
        rows, lookback = self._num_env_rows(query.field), self._len_lookback_buffer
        if not 0 <= position < rows:
            raise IndexError(
                f"get_{query.field}: index {index} is outside of the episode: {rows - lookback} env steps from 0 on, "
                f"{lookback} lookback env steps; give fill= to get a value there"
            )

    def _at_env_step(self, query: _Query, chosen: Iterable[AgentID]) -> AgentDict:
        rows, lookback, index = self._num_env_rows(query.field), self._len_lookback_buffer, query.indices
        if type(index) is int:
            position = index + (lookback if index >= 0 or query.neg else rows)
        else:
            position = LookbackBuffer(range(rows), lookback)._position(index, query.neg)
        is_inside, field = 0 <= position < rows, query.field
        if query.fill is None and not is_inside:
            self._check_inside(query, position, query.indices)
        env_t = self.env_t_started - lookback + position
        result = {}
        for agent_id in chosen:
            times = self._tracks[agent_id].env_t
            row = len(times) - 1 if times[-1] == env_t else bisect_left(times, env_t)
            is_seen = is_inside and row < len(times) and times[row] == env_t
            if is_seen and not query.one_hot and field != "extra_model_outputs":
                data = getattr(self.agent_episodes[agent_id], field).data
                if (type(data) is list or type(data) is np.ndarray) and row < len(data):
                    result[agent_id] = data[row]
                    continue
            column = self._column(query, agent_id) if is_seen or query.fill is not None else None
            if column is None:
                continue
            if is_seen and row < column.num_rows:
                result[agent_id] = column.item(row, query)
            elif query.fill is not None:
                result[agent_id] = column.items([_MISSING], query)[0]
        return result

    def _as_rows(self, query: _Query, columns: list[tuple[AgentID, _Column]], env_ts: range | list[int]) -> AgentDict:
        result = {}
        no_gaps = env_ts if query.fill is None and isinstance(env_ts, range) and env_ts.step == 1 else None
        for agent_id, column in columns:
            if no_gaps is not None:
                first, last = self._row_range(agent_id, column, no_gaps)
                if first < last:
                    result[agent_id] = column.range(first, last, query)
            elif rows := [row for row in self._rows(query, agent_id, column, env_ts) if row is not None]:
                result[agent_id] = column.rows(rows, query)
        return result

    def _as_list(
        self, query: _Query, columns: list[tuple[AgentID, _Column]], env_ts: range | list[int]
    ) -> list[AgentDict]:
        steps: list[AgentDict] = [{} for _ in env_ts]
        for agent_id, column in columns:
            if query.fill is None and isinstance(env_ts, range) and env_ts.step == 1:
                first, last = self._row_range(agent_id, column, env_ts)
                places = [env_t - env_ts.start for env_t in self._tracks[agent_id].env_t[first:last]]
                items = _listed(column.range(first, last, query)) if first < last else []
            else:
                rows = self._rows(query, agent_id, column, env_ts)
                places = [place for place, row in enumerate(rows) if row is not None]
                known = [row for row in rows if row is not None]
                items = column.items(known, query) if known else []
            for place, item in zip(places, items, strict=True):
                steps[place][agent_id] = item
        return steps

    def _row_range(self, agent_id: AgentID, column: _Column, env_ts: range) -> tuple[int, int]:
        """Return first and last (exclusive) of the agent's rows in consecutive env steps."""
        times, rows = self._tracks[agent_id].env_t, column.num_rows
        first, last = bisect_left(times, env_ts.start), bisect_left(times, env_ts.stop)
        return first, last if last < rows else rows

    def _rows(self, query: _Query, agent_id: AgentID, column: _Column, env_ts: range | list[int]) -> list[int | None]:
        """Return the agent's row at each env step; where it has none `_MISSING` if that is to be filled, else None."""
        if not env_ts:
            return []
        times, known_from = self._tracks[agent_id].env_t, self.env_t_started - self._len_lookback_buffer
        no_gaps = isinstance(env_ts, range) and env_ts.step == 1
        low, high = (env_ts[0], env_ts[-1]) if no_gaps else (min(env_ts), max(env_ts))
        first = bisect_left(times, max(low, known_from))
        last = min(bisect_left(times, high + 1), column.num_rows)
        absent = None if query.fill is None else _MISSING
        if no_gaps:
            rows: list[int | None] = [absent] * len(env_ts)
            for row in range(first, last):
                rows[times[row] - low] = row
            return rows
        row_at = {times[row]: row for row in range(first, last)}
        return [row_at.get(env_t, absent) for env_t in env_ts]


@dataclass(slots=True)
class _Query:
    """What a getter was asked for."""

    field: Field
    indices: Indices
    neg: bool
    fill: Any
    one_hot: bool = False
    key: str | None = None


class _Column:
    """One field of one agent: its buffer and, as one row more, the value of the step that it has begun."""

    __slots__ = ("buffer", "hanging")

    def __init__(self, buffer: LookbackBuffer, hanging: Any) -> None:
        self.buffer, self.hanging = buffer, hanging

    @property
    def num_rows(self) -> int:
        return self.buffer.len_incl_lookback() + (self.hanging is not _NOTHING)

    def item(self, row: int, query: _Query) -> Any:
        if row < self.buffer.len_incl_lookback():
            return self.buffer._get(row - self.buffer.lookback, True, None, query.one_hot)
        encode = query.one_hot and self.buffer.space is not None
        return one_hot(self.buffer.space, self.hanging) if encode and self.buffer.space else self.hanging

    def range(self, first: int, last: int, query: _Query) -> Any:
        """Return the rows `first` to `last`, both counted with the lookback; views in numpy mode."""
        buffer = self.buffer if self.hanging is _NOTHING or last < self.num_rows else self.joined()
        if not query.one_hot:
            return take(buffer.data, slice(first, last))
        return buffer._get(slice(first - buffer.lookback, last - buffer.lookback), True, None, True)

    def rows(self, rows: list[int], query: _Query) -> Any:
        """Return these rows, counted with the lookback; `_MISSING` ones are filled."""
        buffer = self.joined()
        if query.fill is not None and not query.one_hot and not buffer.finalized:
            return buffer._gather(rows, query.fill, False)  # as `get` does, which would count the rows once more
        return buffer._get([row - buffer.lookback for row in rows], True, query.fill, query.one_hot)

    def items(self, rows: list[int], query: _Query) -> list[Any]:
        return _listed(self.rows(rows, query))

    def joined(self) -> LookbackBuffer:
        """Return the buffer, or a copy of it with the hanging value at its end."""
        if self.hanging is _NOTHING:
            return self.buffer
        data = self.buffer.data
        joined = LookbackBuffer(list(data) if isinstance(data, list) else data, self.buffer.lookback, self.buffer.space)
        joined.append(self.hanging)
        return joined


def _by_agent_steps(query: _Query, columns: list[tuple[AgentID, _Column]]) -> AgentDict:
    result = {}
    is_one = _is_one(query.indices)
    for agent_id, column in columns:
        try:
            found = column.joined()._get(query.indices, query.neg, query.fill, query.one_hot)
        except IndexError as error:
            raise IndexError(f"get_{query.field}: agent {agent_id!r}: {error}") from None
        if is_one or row_count(found) > 0:
            result[agent_id] = found
    return result


def _listed(rows: Any) -> list[Any]:
    return rows if isinstance(rows, list) else unstack(rows)


def _is_one(indices: Indices) -> bool:
    return type(indices) is int or not (indices is None or isinstance(indices, (slice, list, tuple, range, np.ndarray)))


def _swap_levels(by_key: Mapping[str, Any]) -> AgentDict:
    """Return `{agent: {key: value}}` from `{key: {agent: value}}`."""
    swapped: AgentDict = {}
    for key, by_agent in by_key.items():
        for agent_id, value in by_agent.items():
            swapped.setdefault(agent_id, {})[key] = value
    return swapped
