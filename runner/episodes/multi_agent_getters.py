"""Read multi-agent episodes: one getter for all fields, by env steps or by each agent's own steps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from runner.episodes.agent_track import AgentID, AgentTrack, Begun
from runner.episodes.lookback_buffer import Indices, LookbackBuffer
from runner.episodes.nested import row_count, take, unstack
from runner.episodes.single_agent_episode import SingleAgentEpisode
from runner.episodes.spaces import one_hot

AgentDict = dict[AgentID, Any]

_NOTHING: Any = object()
_MISSING = 2**62  # a row beyond any buffer


@dataclass(frozen=True, slots=True)
class EpisodeField:
    """One kind of data in an episode.

    Attributes:
        name: name in the getters.
        buffer: returns the agent's column, or None if the agent does not have it.
        hanging: returns the value of a begun step from the step and its reward, or `_NOTHING`. None for the fields of
            observations, which have a row after the last step instead.
    """

    name: str
    buffer: Callable[[SingleAgentEpisode], LookbackBuffer | None]
    hanging: Callable[[Begun, Any], Any] | None = None


OBSERVATIONS = EpisodeField("observations", attrgetter("observations"))
INFOS = EpisodeField("infos", attrgetter("infos"))
ACTIONS = EpisodeField("actions", attrgetter("actions"), lambda begun, reward: begun[0])
REWARDS = EpisodeField("rewards", attrgetter("rewards"), lambda begun, reward: reward)


def extra_model_output(key: str) -> EpisodeField:
    """Return the field of one extra model output."""
    return EpisodeField(
        "extra_model_outputs",
        lambda episode: episode.extra_model_outputs.get(key),
        lambda begun, reward: begun[1].get(key, _NOTHING),
    )


@dataclass(slots=True)
class Query:
    """The arguments of a getter that apply to all agents."""

    field: EpisodeField
    indices: Indices
    neg: bool
    fill: Any
    one_hot: bool = False


def at_env_steps(
    tracks: Mapping[AgentID, AgentTrack], known: range, lookback: int, query: Query, return_list: bool
) -> AgentDict | list[AgentDict]:
    """Return the data of the tracks at env steps: by agent or, with `return_list`, one dict by agent per env step.

    Args:
        known: env steps at which the field can be read; the first `lookback` of them are lookback.
    """
    if _is_one(query.indices):
        at_step = _at_env_step(tracks, known, lookback, query)
        return [at_step] if return_list else at_step
    env_ts = _env_steps(known, lookback, query)
    if isinstance(env_ts, range) and env_ts.step == 1 and query.fill is None:
        span, offset, wanted = (env_ts.start, env_ts.stop), env_ts.start, None
    else:
        span, offset = (max(min(env_ts, default=0), known.start), max(env_ts, default=0) + 1), 0
        wanted = env_ts
    by_agent: AgentDict = {}
    listed: list[AgentDict] = [{} for _ in env_ts] if return_list else []
    for agent_id, track in tracks.items():
        column = _column(track, query.field)
        if column is None:
            continue
        found = column.select(span, wanted, query)
        if found is None:
            continue
        by_agent[agent_id] = found[1]
        if return_list:
            for place, item in zip(found[0], _listed(found[1]), strict=True):
                listed[place - offset][agent_id] = item
    return listed if return_list else by_agent


def _env_steps(known: range, lookback: int, query: Query) -> range | list[int]:
    """Return the env steps that several indices name; without `fill` a slice is clipped to the known ones."""
    indices: Any = slice(None) if query.indices is None else query.indices
    if not isinstance(indices, slice):
        return [known.start + _position(index, known, lookback, query) for index in indices]
    found = LookbackBuffer(known, lookback)._slice_positions(indices, query.neg, clip=query.fill is None)
    return range(known.start + found.start, known.start + found.stop, found.step)


def _position(index: Any, known: range, lookback: int, query: Query) -> int:
    if type(index) is int:
        position = index + (lookback if index >= 0 or query.neg else len(known))
    else:
        position = LookbackBuffer(known, lookback)._position(index, query.neg)
    if query.fill is None and not 0 <= position < len(known):
        raise IndexError(
            f"get_{query.field.name}: index {index} is outside of the episode: {len(known) - lookback} env steps "
            f"from 0 on, {lookback} lookback env steps; pass fill= to get a value there"
        )
    return position


def _at_env_step(tracks: Mapping[AgentID, AgentTrack], known: range, lookback: int, query: Query) -> AgentDict:
    env_t, buffer_of, found = known.start + _position(query.indices, known, lookback, query), query.field.buffer, {}
    is_known, is_encoded = query.fill is None or env_t in known, query.one_hot
    for agent_id, track in tracks.items():
        times = track.env_t
        row = len(times) - 1 if times[-1] == env_t else bisect_left(times, env_t)
        is_seen = is_known and row < len(times) and times[row] == env_t
        if is_seen and not is_encoded:  # sufficient for most calls
            buffer = buffer_of(track.episode)
            data = None if buffer is None else buffer.data
            if (type(data) is list or type(data) is np.ndarray) and row < len(data):
                found[agent_id] = data[row]
                continue
        column = _column(track, query.field) if is_seen or query.fill is not None else None
        if column is None:
            continue
        if is_seen and row < column.num_rows:
            found[agent_id] = column.item(row, query)
        elif query.fill is not None:
            found[agent_id] = _listed(column.gather([_MISSING], query))[0]
    return found


def at_agent_steps(tracks: Mapping[AgentID, AgentTrack], query: Query) -> AgentDict:
    """Return the data of the tracks at agent steps; a hanging value comes last."""
    found, is_one = {}, _is_one(query.indices)
    for agent_id, track in tracks.items():
        column = _column(track, query.field)
        if column is None:
            continue
        try:
            rows = column.joined()._get(query.indices, query.neg, query.fill, query.one_hot)
        except IndexError as error:
            raise IndexError(f"get_{query.field.name}: agent {agent_id!r}: {error}") from None
        if is_one or row_count(rows) > 0:
            found[agent_id] = rows
    return found


@dataclass(slots=True)
class _Column:
    """One field of one agent: the env step of each row, its buffer, and the hanging value as an additional row."""

    env_t: list[int]
    buffer: LookbackBuffer
    hanging: Any

    @property
    def num_rows(self) -> int:
        return self.buffer.len_incl_lookback() + (self.hanging is not _NOTHING)

    def select(
        self, span: tuple[int, int], wanted: range | list[int] | None, query: Query
    ) -> tuple[Sequence[int], Any] | None:
        """Return the position of each row in `wanted`, and the rows; None if there are none.

        Args:
            span: first and last (exclusive) env step to read.
            wanted: env steps; with `fill` each of them has a row. None: all of the span; positions are then env steps,
                and rows are views in numpy mode.
        """
        times = self.env_t
        first, last, num_rows = bisect_left(times, span[0]), bisect_left(times, span[1]), self.num_rows
        last = last if last < num_rows else num_rows
        if wanted is None:
            return (times[first:last], self._rows(first, last, query)) if first < last else None
        row_at = {times[row]: row for row in range(first, last)}
        if query.fill is not None:
            places: Sequence[int] = range(len(wanted))
            rows = [row_at.get(env_t, _MISSING) for env_t in wanted]
        else:
            places = [place for place, env_t in enumerate(wanted) if env_t in row_at]
            rows = [row_at[wanted[place]] for place in places]
        return (places, self.gather(rows, query)) if rows else None

    def item(self, row: int, query: Query) -> Any:
        buffer = self.buffer
        if row < buffer.len_incl_lookback():
            return buffer._get(row - buffer.lookback, True, None, query.one_hot)
        return one_hot(buffer.space, self.hanging) if query.one_hot and buffer.space is not None else self.hanging

    def _rows(self, first: int, last: int, query: Query) -> Any:
        buffer = self.buffer if self.hanging is _NOTHING or last < self.num_rows else self.joined()
        if not query.one_hot:
            return take(buffer.data, slice(first, last))
        return buffer._get(slice(first - buffer.lookback, last - buffer.lookback), True, None, True)

    def gather(self, rows: list[int], query: Query) -> Any:
        """Return these rows, counted with the lookback; `_MISSING` rows are filled."""
        buffer = self.joined()
        if query.fill is not None and not query.one_hot and not buffer.finalized:
            return buffer._gather(rows, query.fill, False)  # `get` would count the rows once more
        return buffer._get([row - buffer.lookback for row in rows], True, query.fill, query.one_hot)

    def joined(self) -> LookbackBuffer:
        """Return the buffer, or a copy of it with the hanging value at its end."""
        if self.hanging is _NOTHING:
            return self.buffer
        data = self.buffer.data
        joined = LookbackBuffer(list(data) if isinstance(data, list) else data, self.buffer.lookback, self.buffer.space)
        joined.append(self.hanging)
        return joined


def _column(track: AgentTrack, field: EpisodeField) -> _Column | None:
    buffer, hanging = field.buffer(track.episode), _NOTHING
    if field.hanging is not None and track.begun is not None:
        hanging = field.hanging(track.begun, track.reward)
    if buffer is not None:
        return _Column(track.env_t, buffer, hanging)
    return None if hanging is _NOTHING else _Column(track.env_t, LookbackBuffer(), hanging)


def _listed(rows: Any) -> list[Any]:
    return rows if isinstance(rows, list) else unstack(rows)


def _is_one(indices: Indices) -> bool:
    return type(indices) is int or not (indices is None or isinstance(indices, (slice, list, tuple, range, np.ndarray)))


def by_agent_first(by_key: Mapping[str, Any]) -> AgentDict:
    """Return `{agent: {key: value}}` from `{key: {agent: value}}`."""
    swapped: AgentDict = {}
    for key, by_agent in by_key.items():
        for agent_id, value in by_agent.items():
            swapped.setdefault(agent_id, {})[key] = value
    return swapped
