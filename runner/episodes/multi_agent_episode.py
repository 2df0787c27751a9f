"""The trajectories of several agents in one environment: one `SingleAgentEpisode` each, on a common time axis."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

import numpy as np

from runner.episodes.agent_track import ALL, AgentID, AgentTrack
from runner.episodes.lookback_buffer import Indices, LookbackBuffer
from runner.episodes.multi_agent_getters import (
    ACTIONS,
    INFOS,
    OBSERVATIONS,
    REWARDS,
    AgentDict,
    Query,
    at_agent_steps,
    at_env_steps,
    by_agent_first,
    extra_model_output,
)
from runner.episodes.single_agent_episode import SingleAgentEpisode, checked_lookback, slice_bounds

Array = np.ndarray[Any, Any]
AgentIDs = Collection[AgentID] | AgentID | None

Slice = slice  # the class has a method of this name


class MultiAgentEpisode:
    """An episode of several agents, or a chunk of one: T = `len(episode)` env steps after H of lookback.

    It is a view of the rows that env runners have sampled, or of other agents' episodes, whose data it does not copy.
    `agent_episodes` has one `SingleAgentEpisode` for each agent. Change the data of these episodes, not the dict.
    Agents may join, skip env steps, and leave; `env_t_to_agent_t` has the env steps at which each of them was observed.

    An agent's step begins at the env step of the observation that was acted on, and ends at its next observation. Its
    reward is the sum of the agent's rewards until then. A slice may end within a step. Action, extra model outputs and
    reward of this step then *hang*: getters return them, but the agent's episode does not contain them.

    Getters share their arguments:

    * `indices`: one int, a list or slice of them, None for all from env step 0 on. As in `LookbackBuffer.get`,
      a negative index counts from the end or, with `neg_index_as_lookback`, from env step 0 back into the
      lookback; -1 is the newest observation, but the newest *complete or begun* step for all other fields.
    * `agent_ids`: one id or several; None: all agents of this chunk. Unknown ids are ignored.
    * `env_steps=True`: indices are env steps; an action, reward or extra output is at the env step of the
      observation that was acted on, also for begun steps: a hanging action, and the rewards so far. An agent
      without a value at one env step is left out of an int's result, and has fewer rows in a list of many.
      `env_steps=False`: indices are each agent's steps, with the hanging action last.
    * `fill`: the value at every env step (or agent step) without data, inside or outside of the range.
    * `return_list=True` (env steps only): a list with one dict per env step, also for an int.

    The result is a dict by agent id: an item for an int, otherwise a list of items or (numpy mode) columns. Agents
    without any row are left out. Getters raise `IndexError` for an int or list index outside without `fill`, and
    the errors of `LookbackBuffer.get`.
    """

    SKIP_ENV_TS_TAG = "S"

    __slots__ = (
        "_custom_data",
        "_len_lookback_buffer",
        "_tracks",
        "agent_episodes",
        "env_t",
        "env_t_started",
        "id_",
        "is_terminated",
        "is_truncated",
    )

    def __init__(
        self,
        id_: str | None,
        *,
        agent_episodes: Mapping[AgentID, SingleAgentEpisode],
        env_t_of_obs: Mapping[AgentID, Sequence[int] | Array],
        env_t_started: int,
        env_t: int,
        is_terminated: bool = False,
        is_truncated: bool = False,
        len_lookback_buffer: int | None = None,
    ) -> None:
        """Make the episode around the agents' episodes.

        The agent episodes become part of this episode: unset `agent_id` and `multi_agent_episode_id` are set.

        Args:
            id_: None: a new UUID's hex digits.
            agent_episodes: the agents' chunks.
            env_t_of_obs: ascending env step of each of the agent's observations, its lookback rows included.
            env_t_started: env step after the lookback.
            env_t: env step of the newest observation.
            is_terminated, is_truncated: whether the episode has ended for all agents.
            len_lookback_buffer: env steps of lookback; default: back to the earliest lookback row of any agent.

        Raises:
            ValueError: number of rows or last env step do not fit; `validate()` checks everything.
        """
        self._begin(uuid.uuid4().hex if id_ is None else id_, env_t_started, env_t)
        self.is_terminated, self.is_truncated = is_terminated, is_truncated
        for agent_id, episode in agent_episodes.items():
            self._put(agent_id, AgentTrack(episode, _checked_env_t(agent_id, episode, env_t_of_obs, env_t)))
            episode.agent_id = agent_id if episode.agent_id is None else episode.agent_id
            if episode.multi_agent_episode_id is None:
                episode.multi_agent_episode_id = self.id_
        if len_lookback_buffer is None:
            looking_back = [track.env_t[0] for track in self._tracks.values() if track.lookback > 0]
            len_lookback_buffer = env_t_started - min(looking_back, default=env_t_started)
        self._len_lookback_buffer = checked_lookback(len_lookback_buffer)

    def _begin(self, id_: str, env_t_started: int, env_t: int, lookback: int = 0) -> None:
        self.id_, self.env_t_started, self.env_t, self._len_lookback_buffer = id_, env_t_started, env_t, lookback
        self.agent_episodes: dict[AgentID, SingleAgentEpisode] = {}
        self._tracks: dict[AgentID, AgentTrack] = {}  # around the episodes of `agent_episodes`
        self.is_terminated = self.is_truncated = False
        self._custom_data: dict[Any, Any] | None = None

    @property
    def _env_ts(self) -> range:
        """The env steps of this chunk."""
        return range(self.env_t_started, self.env_t)

    def _put(self, agent_id: AgentID, track: AgentTrack) -> None:
        self._tracks[agent_id], self.agent_episodes[agent_id] = track, track.episode

    def to_numpy(self) -> MultiAgentEpisode:
        """Turn all agents' data except infos into columns, in place; return the episode itself.

        Raises `ValueError` or `TypeError`, naming the agent, if a field's items cannot be stacked.
        """
        for agent_id, episode in self.agent_episodes.items():
            try:
                episode.to_numpy()
            except (TypeError, ValueError) as error:
                raise type(error)(f"agent {agent_id!r}: {error}") from None
        return self

    # --- chunks -----------------------------------------------------------------------------------

    def slice(self, slice_: Slice, *, len_lookback_buffer: int | None = None) -> Self:
        """Return the env steps from `slice_.start` up to `slice_.stop` as an episode, with the observations after them.

        Negative values count from the end; the range is clipped to the env steps 0 to T. An agent's step belongs to
        the slice with the observation that was acted on: if the slice ends before that step does, the action and the
        entire reward hang. An agent is in the slice if it is observed in it, and did not end at its start. An agent
        that waits at the end of the episode is in the slice that continues from there; an agent that waits at its
        start, observed only in the lookback, is in the slice from env step 0.

        The lookback has up to `len_lookback_buffer` env steps (default: the same as this episode's), and only agents of
        the slice. Done flags are kept only if the slice reaches the last env step (an agent's: its last observation).
        Numpy mode: views, not copies. Raises `ValueError` for a step other than 1.
        """
        start, stop = slice_bounds(slice_, len(self))
        known = self._len_lookback_buffer
        lookback = min(known if len_lookback_buffer is None else checked_lookback(len_lookback_buffer), known + start)
        env_ts = self._env_ts[start:stop]
        chunk = type(self).__new__(type(self))
        chunk._begin(self.id_, env_ts.start, env_ts.stop, lookback)
        chunk._custom_data = None if self._custom_data is None else dict(self._custom_data)
        if stop == len(self):
            chunk.is_terminated, chunk.is_truncated = self.is_terminated, self.is_truncated
        for agent_id, track in self._tracks.items():
            has_ended = start > 0 and track.episode.is_done and track.env_t[-1] <= env_ts.start
            part = None if has_ended else track.slice(env_ts, lookback, self._env_ts)
            if part is not None:
                chunk._put(agent_id, part)
        return chunk

    def __getitem__(self, item: Slice) -> Self:
        """Return `episode[a:b]`, `episode.slice(slice(a, b))`; `TypeError` for an int."""
        if not isinstance(item, slice):
            raise TypeError(f"an episode is indexed with a slice such as episode[3:4], got {item!r}")
        return self.slice(item)

    # --- getters (see the class) ------------------------------------------------------------------

    def get_observations(
        self,
        indices: Indices = None,
        agent_ids: AgentIDs = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> AgentDict | list[AgentDict]:
        """Return observations by agent at the given env steps, or at all T + 1 env steps for None."""
        query = Query(OBSERVATIONS, indices, neg_index_as_lookback, fill, one_hot_discrete)
        return self._get(query, agent_ids, env_steps, return_list)

    def get_infos(
        self,
        indices: Indices = None,
        agent_ids: AgentIDs = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> AgentDict | list[AgentDict]:
        """Return infos by agent; an info belongs to the observation it came with."""
        query = Query(INFOS, indices, neg_index_as_lookback, fill)
        return self._get(query, agent_ids, env_steps, return_list)

    def get_actions(
        self,
        indices: Indices = None,
        agent_ids: AgentIDs = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> AgentDict | list[AgentDict]:
        """Return actions by agent; None: at the T env steps 0 to T - 1."""
        query = Query(ACTIONS, indices, neg_index_as_lookback, fill, one_hot_discrete)
        return self._get(query, agent_ids, env_steps, return_list)

    def get_rewards(
        self,
        indices: Indices = None,
        agent_ids: AgentIDs = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> AgentDict | list[AgentDict]:
        """Return rewards by agent; each is the sum over the env steps that the agent's step took."""
        query = Query(REWARDS, indices, neg_index_as_lookback, fill)
        return self._get(query, agent_ids, env_steps, return_list)

    def get_extra_model_outputs(
        self,
        key: str | None = None,
        indices: Indices = None,
        agent_ids: AgentIDs = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> AgentDict | list[AgentDict]:
        """Return outputs named `key` by agent; without `key` each agent's value is a dict of all its outputs.

        Agents without this output are left out; raises `ValueError` if no agent has it but some have others.
        """
        known = self._extra_keys()
        if key is not None and known and key not in known:
            raise ValueError(f"no agent of episode {self.id_} has extra_model_outputs named {key!r}; known: {known}")
        by_key = {}
        for name in known if key is None else [key]:
            query = Query(extra_model_output(name), indices, neg_index_as_lookback, fill)
            by_key[name] = self._get(query, agent_ids, env_steps, return_list)
        if key is not None:
            return by_key[key]
        if not return_list:
            return by_agent_first(by_key)
        if not by_key:
            query = Query(ACTIONS, indices, neg_index_as_lookback, fill)
            return [{} for _ in self._get(query, [], env_steps, return_list)]
        return [by_agent_first(dict(zip(by_key, step, strict=True))) for step in zip(*by_key.values(), strict=True)]

    def _extra_keys(self) -> list[str]:
        keys: dict[str, None] = {}
        for track in self._tracks.values():
            keys |= dict.fromkeys(track.episode.extra_model_outputs)
        for track in self._tracks.values():
            keys |= dict.fromkeys(() if track.begun is None else track.begun[1])
        return list(keys)

    def _get(
        self, query: Query, agent_ids: AgentIDs, env_steps: bool, return_list: bool
    ) -> AgentDict | list[AgentDict]:
        tracks = self._tracks
        if agent_ids is not None:
            wanted = {agent_ids} if isinstance(agent_ids, (str, int)) else set(agent_ids)
            tracks = {agent_id: track for agent_id, track in tracks.items() if agent_id in wanted}
        if env_steps:
            lookback = self._len_lookback_buffer
            known = range(self.env_t_started - lookback, self.env_t + (query.field.hanging is None))
            return at_env_steps(tracks, known, lookback, query, return_list)
        if return_list:
            name = query.field.name
            raise ValueError(f"get_{name}: return_list=True is one dict per env step, it needs env_steps=True")
        return at_agent_steps(tracks, query)

    # --- setters (see LookbackBuffer.set; the number of rows never changes) -----------------------

    def set_observations(
        self, *, new_data: Mapping[AgentID, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replace observations; `new_data` is by agent, indices are agent steps. `KeyError` for unknown agents."""
        self._set("observations", new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_actions(
        self, *, new_data: Mapping[AgentID, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replace actions of complete steps; arguments as for `set_observations`."""
        self._set("actions", new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_rewards(
        self, *, new_data: Mapping[AgentID, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replace rewards of complete steps; arguments as for `set_observations`."""
        self._set("rewards", new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_extra_model_outputs(
        self,
        *,
        key: str,
        new_data: Mapping[AgentID, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Replace outputs named `key`, which each of the agents must have; arguments as for `set_observations`."""
        self._set(
            "extra_model_outputs", new_data, key=key, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback
        )

    def _set(self, name: str, new_data: Mapping[AgentID, Any], **options: Any) -> None:
        if unknown := [agent_id for agent_id in new_data if agent_id not in self.agent_episodes]:
            known = list(self.agent_episodes)
            raise KeyError(f"agent {unknown[0]!r} is not in episode {self.id_}; its agents: {known}")
        for agent_id, data in new_data.items():
            getattr(self.agent_episodes[agent_id], f"set_{name}")(new_data=data, **options)

    # --- lengths, returns, agents ------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of env steps of this chunk, without its lookback."""
        return self.env_t - self.env_t_started

    def module_for(self, agent_id: AgentID) -> str | None:
        """Return the module of the agent."""
        return self.agent_episodes[agent_id].module_id

    def get_terminateds(self) -> dict[AgentID, bool]:
        """Return whether each agent of this chunk has terminated and, under `__all__`, whether the episode has."""
        flags = {agent_id: episode.is_terminated for agent_id, episode in self.agent_episodes.items()}
        return {**flags, ALL: self.is_terminated}

    def get_truncateds(self) -> dict[AgentID, bool]:
        """Return whether each agent of this chunk was truncated and, under `__all__`, whether the episode was."""
        flags = {agent_id: episode.is_truncated for agent_id, episode in self.agent_episodes.items()}
        return {**flags, ALL: self.is_truncated}

    def get_agents_that_stepped(self) -> set[AgentID]:
        """Return the agents with an observation at the newest env step, including agents that ended there."""
        return {agent_id for agent_id, track in self._tracks.items() if track.env_t[-1] == self.env_t}

    def get_agents_to_act(self) -> set[AgentID]:
        """Return the agents that have to act in the next env step: observed at the newest one, and not ended."""
        return {a for a in self.get_agents_that_stepped() if not self.agent_episodes[a].is_done}

    def get_return(self) -> float:
        """Return the sum of all agents' rewards (float64, undiscounted) in their complete steps of this chunk."""
        return sum((episode.get_return() for episode in self.agent_episodes.values()), 0.0)

    def env_steps(self) -> int:
        """Return T."""
        return len(self)

    def agent_steps(self) -> int:
        """Return the number of complete steps of all agents in this chunk."""
        return sum(len(episode) for episode in self.agent_episodes.values())

    @property
    def agent_ids(self) -> set[AgentID]:
        """The agents of this chunk."""
        return set(self.agent_episodes)

    @property
    def agent_episode_ids(self) -> dict[AgentID, str]:
        """The ids of the agents' episodes."""
        return {agent_id: episode.id_ for agent_id, episode in self.agent_episodes.items()}

    @property
    def agent_t_started(self) -> dict[AgentID, int]:
        """Each agent's time step at its first observation of this chunk."""
        return {agent_id: episode.t_started for agent_id, episode in self.agent_episodes.items()}

    @property
    def env_t_to_agent_t(self) -> dict[AgentID, LookbackBuffer]:
        """For each agent, its time step at each env step (H of lookback, then 0 to T), or "S" if it was skipped.

        Computed at each access.
        """
        first = self.env_t_started - self._len_lookback_buffer
        mapping = {}
        for agent_id, track in self._tracks.items():
            agent_t: list[Any] = [self.SKIP_ENV_TS_TAG] * (self.env_t - first + 1)
            for t, env_t in enumerate(track.env_t, track.episode.t_started - track.lookback):
                if env_t >= first:
                    agent_t[env_t - first] = t
            mapping[agent_id] = LookbackBuffer(agent_t, self._len_lookback_buffer)
        return mapping

    @property
    def custom_data(self) -> dict[Any, Any]:
        """A dict for values that callbacks and connectors remember; chunks and slices get a shallow copy."""
        if self._custom_data is None:
            self._custom_data = {}
        return self._custom_data

    @property
    def is_numpy(self) -> bool:
        """Whether all agents' data are arrays; False without agents."""
        return bool(self.agent_episodes) and all(e.is_numpy for e in self.agent_episodes.values())

    @property
    def is_done(self) -> bool:
        """Whether the episode is terminated or truncated, for all agents."""
        return self.is_terminated or self.is_truncated

    def __repr__(self) -> str:
        done = "terminated" if self.is_terminated else "truncated" if self.is_truncated else "ongoing"
        span, agents = f"{self.env_t_started}..{self.env_t}", list(self.agent_episodes)
        return f"MultiAgentEpisode(id_={self.id_!r}, len={len(self)}, env_t={span}, agents={agents!r:.120}, {done})"

    def print(self) -> None:
        """Print one line of env steps, and one line per agent with an x at each env step with an observation."""
        first = self.env_t_started - self._len_lookback_buffer
        heads = [str(env_t) for env_t in range(first, self.env_t + 1)]
        width = max(len("env_t"), *(len(str(agent_id)) for agent_id in self.agent_episodes), 0)
        lines = ["  ".join(["env_t".ljust(width), *heads])]
        for agent_id, track in self._tracks.items():
            known = set(track.env_t)
            marks = ["x" if first + column in known else "." for column in range(len(heads))]
            cells = [mark.rjust(len(head)) for mark, head in zip(marks, heads, strict=True)]
            lines.append("  ".join([str(agent_id).ljust(width), *cells]))
        print("\n".join(lines))

    def validate(self) -> None:
        """Raise `ValueError` naming the agent whose data or env steps do not fit."""
        if self.env_t < self.env_t_started:
            raise ValueError(f"episode {self.id_}: env_t is {self.env_t}, before env_t_started={self.env_t_started}")
        for agent_id in dict.fromkeys((*self._tracks, *self.agent_episodes)):
            track = self._tracks.get(agent_id)
            if track is None or track.episode is not self.agent_episodes.get(agent_id):
                raise ValueError(
                    f"episode {self.id_}: agent_episodes[{agent_id!r}] was added, removed or replaced; "
                    "change the data of the agent's episode instead"
                )
            problem = track.problem(self._env_ts)
            if problem is not None:
                raise ValueError(f"episode {self.id_}: agent {agent_id!r}: {problem}")


# --- arguments ------------------------------------------------------------------------------------


def _checked_env_t(
    agent_id: AgentID,
    episode: SingleAgentEpisode,
    env_t_of_obs: Mapping[AgentID, Sequence[int] | Array],
    env_t: int,
) -> list[int]:
    given = env_t_of_obs.get(agent_id, ())
    times = given.tolist() if isinstance(given, np.ndarray) else list(given)
    rows = episode.observations.len_incl_lookback()
    if len(times) != rows or not rows:
        raise ValueError(f"agent {agent_id!r} has {rows} observations, but env_t_of_obs has {len(times)} for it")
    if times[-1] > env_t:
        raise ValueError(f"env_t_of_obs of agent {agent_id!r} goes to {times[-1]}, beyond env_t={env_t}")
    return times
