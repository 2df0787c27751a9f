"""Parts of multi-agent episodes: cutting, slicing, and joining chunks again."""

from __future__ import annotations

from typing import Any, Self

from runner.episodes.multi_agent_fields import MultiAgentFields
from runner.episodes.multi_agent_getters import MultiAgentGetters

Slice = slice  # the class has a method of this name


class MultiAgentChunks(MultiAgentGetters):
    """`cut`, `slice` and `concat_episode` of a `MultiAgentEpisode`."""

    __slots__ = ()

    def cut(self, len_lookback_buffer: int = 0) -> Self:
        """Return the chunk in which this episode goes on: length 0, starting at `env_t`, with the agents still there.

        Each has its newest observation, also if that is older than the lookback, and copies of what it saw and did
        in the last `len_lookback_buffer` env steps (as far as there are). What hangs, hangs in the new chunk; its
        rewards are counted by `get_return(include_hanging_rewards=True)` of this one. Raises `ValueError` if the
        episode is done or not reset.
        """
        if self.is_done or not self._is_reset:
            state = "is done; there is nothing to continue" if self.is_done else "is not reset"
            raise ValueError(f"cut: episode {self.id_} (env_t={self.env_t}) {state}")
        lookback = min(checked_lookback(len_lookback_buffer), self._len_lookback_buffer + len(self))
        chunk = self._chunk(self.env_t, self.env_t, lookback)
        chunk._ended_agents = dict(self._ended_agents)
        for agent_id, track in self._tracks.items():
            if track.episode.is_done:
                chunk._ended_agents[agent_id] = (track.episode.is_terminated, track.episode.is_truncated)
            else:
                chunk._put(agent_id, track.cut(self.env_t - lookback))
        chunk._start_time = chunk._last_step_time = self._last_step_time
        return chunk

    def slice(self, slice_: Slice, *, len_lookback_buffer: int | None = None) -> Self:
        """Return the env steps from `slice_.start` up to `slice_.stop` as an episode, with the observations after them.

        Negative values count from the end; the range is clipped to the env steps 0 to T. An agent's step belongs to
        the slice that has the observation it answers: where the slice ends before that step does, its action and
        (whole) reward hang. An agent is in the slice if it is observed in it, and did not end at its start; one
        that waits at the end of the episode is in the slice that goes on from there, and one that waits at its start,
        observed in the lookback only, is in the slice from env step 0. The lookback has `len_lookback_buffer` env steps
        (default: as many as this episode's), as far as there are; what an agent did there is in the slice only if the
        agent is. Done flags are
        kept only if the slice reaches the last env step (an agent's: its last observation). Numpy mode: views, not
        copies. Raises `ValueError` for a step other than 1.
        """
        if slice_.step not in (None, 1):
            raise ValueError(f"slice: an episode can only be sliced with step 1, got {slice_.step}")
        start, stop, _ = slice_.indices(len(self))
        stop = max(start, stop)
        known = self._len_lookback_buffer
        lookback = min(known if len_lookback_buffer is None else checked_lookback(len_lookback_buffer), known + start)
        whole, env_ts = (
            range(self.env_t_started, self.env_t),
            range(self.env_t_started + start, self.env_t_started + stop),
        )
        chunk = self._chunk(env_ts.start, env_ts.stop, lookback)
        chunk._ended_agents = dict(self._ended_agents)
        if start == 0:
            chunk._hanging_rewards_begin = dict(self._hanging_rewards_begin)
        if stop == len(self):
            chunk.is_terminated, chunk.is_truncated = self.is_terminated, self.is_truncated
        for agent_id, track in self._tracks.items():
            if start > 0 and track.has_ended_by(env_ts.start):
                chunk._ended_agents[agent_id] = (track.episode.is_terminated, track.episode.is_truncated)
            elif (part := track.slice(env_ts, lookback, whole)) is not None:
                chunk._put(agent_id, part)
        return chunk

    def _chunk(self, env_t_started: int, env_t: int, lookback: int) -> Self:
        """Return an episode without agents, not done, that is a part of this one."""
        chunk = type(self).__new__(type(self))
        chunk._init_fields(self.id_, env_t_started, env_t, lookback)
        chunk._is_reset = self._is_reset
        chunk.observation_space, chunk.action_space = self.observation_space, self.action_space
        chunk.agent_to_module_mapping_fn = self.agent_to_module_mapping_fn
        chunk._agent_to_module_mapping = dict(self._agent_to_module_mapping)
        chunk._custom_data = None if self._custom_data is None else dict(self._custom_data)
        return chunk

    def concat_episode(self, other: MultiAgentFields) -> None:
        """Append `other`, the chunk that follows this one; its lookback and its agents' first observations are
        dropped.

        Raises `ValueError` if `other` has another `id_`, does not start at `env_t`, lacks an agent that is still
        there or goes on with one that has ended, or if the agents' chunks do not fit; or if this one is done.
        """
        problem = self._problem_with_successor(other)
        if problem is not None:
            raise ValueError(f"concat_episode: cannot append the chunk: {problem}")
        for agent_id, theirs in other._tracks.items():
            mine = self._tracks.get(agent_id)
            if mine is None:
                self._put(agent_id, theirs.without_lookback())
            else:
                mine.append(theirs)
        for agent_id, reward in other._hanging_rewards_begin.items():
            self._hanging_rewards_begin[agent_id] = self._hanging_rewards_begin.get(agent_id, 0.0) + reward
        self._agent_to_module_mapping |= other._agent_to_module_mapping
        self.env_t = other.env_t
        self.is_terminated, self.is_truncated = other.is_terminated, other.is_truncated
        if other._last_step_time is not None:
            self._last_step_time = other._last_step_time
        if other._custom_data:
            self.custom_data.update(other._custom_data)

    def _problem_with_successor(self, other: MultiAgentFields) -> str | None:
        if other.id_ != self.id_:
            return f"its id_ is {other.id_}, expected {self.id_}"
        if self.is_done:
            return f"episode {self.id_} is done (env_t={self.env_t})"
        if other.env_t_started != self.env_t:
            return f"it starts at env_t={other.env_t_started}, expected env_t={self.env_t}"
        if not self._is_reset or not other._is_reset:
            return "both chunks need a reset"
        for agent_id, episode in self.agent_episodes.items():
            theirs = other.agent_episodes.get(agent_id)
            if episode.is_done and theirs is not None:
                return f"agent {agent_id!r} has ended (t={episode.t}), but goes on in it"
            if not episode.is_done and theirs is None:
                return f"agent {agent_id!r} has not ended (t={episode.t}), but is not in it"
            if theirs is not None:
                try:
                    episode._check_successor(theirs)
                except ValueError as error:
                    return f"agent {agent_id!r}: {error}"
        return None

    def __getitem__(self, item: Slice) -> Self:
        """Return `episode[a:b]`, `episode.slice(slice(a, b))`; `TypeError` for an int."""
        if not isinstance(item, slice):
            raise TypeError(f"an episode is indexed with a slice such as episode[3:4], got {item!r}")
        return self.slice(item)


def checked_lookback(length: Any) -> int:
    if not isinstance(length, int) or length < 0:
        raise ValueError(f"len_lookback_buffer must be a non-negative int, got {length!r}")
    return length
