"""The trajectories of several agents in one environment: one `SingleAgentEpisode` each, on a common time axis."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from runner.episodes.agent_track import (
    ALL,
    NUMBER,
    AgentID,
    AgentTrack,
    MultiAgentStep,
    add_hanging,
    read_by_agent,
    read_dict,
    read_env_t,
    read_pairs,
    tracks_from_state,
    tracks_to_state,
)
from runner.episodes.columns import DEFAULT_MODULE_ID
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
from runner.episodes.nested import StateError, read_key, to_plain
from runner.episodes.single_agent_episode import (
    SingleAgentEpisode,
    check_keys,
    checked_lookback,
    read_clock,
    slice_bounds,
)
from runner.episodes.spaces import space_from_dict, space_to_dict

if TYPE_CHECKING:
    from gymnasium import Space

Array = np.ndarray[Any, Any]
AgentIDs = Collection[AgentID] | AgentID | None
Flags = bool | Mapping[AgentID, Any]
ModuleMapping = Callable[[AgentID, "MultiAgentEpisode"], str]

Slice = slice  # the class has a method of this name


def map_to_default_module(agent_id: AgentID, episode: Any) -> str:
    """Map all agents to one module."""
    return DEFAULT_MODULE_ID


class MultiAgentEpisode:
    """An episode of several agents, or a chunk of one: T = `len(episode)` env steps after H of lookback.

    `agent_episodes` has one `SingleAgentEpisode` for each agent that has been observed. Change the data of these
    episodes, not the dict. Agents may join, skip env steps, and leave; `env_t_to_agent_t` has the env steps at which
    each of them was observed. In an env step, each agent has one of:

    * an action and the observation after it: a complete step of the agent;
    * an action only: it *hangs*, with its extra model outputs, until the agent's next observation completes the
      step; all rewards until then (also before the action) add up to that step's reward;
    * an observation only: it completes the hanging action, or is the agent's first one;
    * a reward only: it is added to the agent's next complete step. Rewards before an agent's first observation, and
      rewards without a later action, are not in any step: only `get_return(include_hanging_rewards=True)` has them;
    * an end. If an agent terminates with a hanging action and without a final observation, its newest observation is
      repeated as the final one, which learners ignore. If it is truncated, that is an error: the value of the final
      observation is needed.

    Flags of single agents take precedence; `__all__` ends the agents without a flag. The episode is terminated if
    `__all__` was, or if every agent terminated. It is truncated if `__all__` was, or if every agent ended and at least
    one of them did not terminate.

    A chunk from `cut()` includes hanging actions and rewards, and remembers who has ended: an agent that ended at or
    before `env_t_started` is not in it.

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
        "_agent_to_module_mapping",
        "_custom_data",
        "_ended_agents",
        "_hanging_rewards_begin",
        "_is_reset",
        "_last_step_time",
        "_len_lookback_buffer",
        "_start_time",
        "_tracks",
        "action_space",
        "agent_episodes",
        "agent_to_module_mapping_fn",
        "env_t",
        "env_t_started",
        "id_",
        "is_terminated",
        "is_truncated",
        "observation_space",
    )

    def _init_fields(self, id_: str, env_t_started: int, env_t: int, lookback: int) -> None:
        self.id_ = id_
        self.env_t_started, self.env_t, self._len_lookback_buffer = env_t_started, env_t, lookback
        self.agent_episodes: dict[AgentID, SingleAgentEpisode] = {}
        self._tracks: dict[AgentID, AgentTrack] = {}  # around the episodes of `agent_episodes`
        self._ended_agents: dict[AgentID, tuple[bool, bool]] = {}  # ended before this chunk: terminated, truncated
        self._hanging_rewards_begin: dict[AgentID, Any] = {}  # before the first observation: not part of any step
        self.observation_space: dict[AgentID, Space[Any]] = {}
        self.action_space: dict[AgentID, Space[Any]] = {}
        self.agent_to_module_mapping_fn: ModuleMapping = map_to_default_module
        self._agent_to_module_mapping: dict[AgentID, str] = {}
        self.is_terminated = self.is_truncated = self._is_reset = False
        self._custom_data: dict[Any, Any] | None = None
        self._start_time: float | None = None
        self._last_step_time: float | None = None

    def __init__(  # noqa: PLR0913 - the signature of the specification
        self,
        id_: str | None = None,
        *,
        observations: Sequence[Mapping[AgentID, Any]] | None = None,
        observation_space: Mapping[AgentID, Space[Any]] | None = None,
        infos: Sequence[Mapping[AgentID, Any]] | None = None,
        actions: Sequence[Mapping[AgentID, Any]] | None = None,
        action_space: Mapping[AgentID, Space[Any]] | None = None,
        rewards: Sequence[Mapping[AgentID, Any]] | None = None,
        terminateds: Flags = False,
        truncateds: Flags = False,
        extra_model_outputs: Sequence[Mapping[AgentID, dict[str, Any]]] | None = None,
        env_t_started: int | None = None,
        agent_t_started: Mapping[AgentID, int] | None = None,
        len_lookback_buffer: int | Literal["auto"] = "auto",
        agent_episode_ids: Mapping[AgentID, str] | None = None,
        agent_module_ids: Mapping[AgentID, str] | None = None,
        agent_to_module_mapping_fn: ModuleMapping | None = None,
    ) -> None:
        """Make an empty episode, or one with a history: one dict by agent id for each env step.

        The history is added with `add_env_step`, step by step. `observations` (and `infos`) have one dict more than
        `actions`, `rewards` and `extra_model_outputs`. `terminateds` and `truncateds` belong to its last step.

        Args:
            id_: default: a new UUID's hex digits.
            observation_space, action_space: the agents' spaces, by agent id (or a `gymnasium.spaces.Dict`).
            env_t_started: env step after the lookback; default 0.
            agent_t_started: each agent's time step there; default 0.
            len_lookback_buffer: number of the given env steps that are lookback (at most all of them); "auto": all, so
                that the episode's length is 0.
            agent_episode_ids: ids of the agents' episodes; default: new UUIDs.
            agent_module_ids: modules of agents for which `agent_to_module_mapping_fn` is not called.
            agent_to_module_mapping_fn: module id from an agent id and this episode, called once for each agent;
                default: "default_policy".

        Raises:
            ValueError: the history's lengths do not fit together, or `add_env_step` raises it.
        """
        self._init_fields(uuid.uuid4().hex if id_ is None else id_, env_t_started or 0, env_t_started or 0, 0)
        self.observation_space, self.action_space = dict(observation_space or {}), dict(action_space or {})
        self.agent_to_module_mapping_fn = agent_to_module_mapping_fn or map_to_default_module
        self._agent_to_module_mapping = dict(agent_module_ids or {})
        observations, infos = observations or [], infos or [{}] * len(observations or [])
        steps = _history(observations, infos, actions or [], rewards or [], extra_model_outputs)
        if not observations:
            return
        lookback = len(steps) if len_lookback_buffer == "auto" else checked_lookback(len_lookback_buffer)
        self._len_lookback_buffer = min(lookback, len(steps))
        self.env_t -= self._len_lookback_buffer
        self.add_env_reset(observations=observations[0], infos=infos[0])
        self._add_history(steps, _by_agent(terminateds), _by_agent(truncateds))
        for agent_id, episode in self.agent_episodes.items():
            episode.t_started = (agent_t_started or {}).get(agent_id, 0)
            episode.t = episode.t_started + len(episode.rewards)
            episode.id_ = (agent_episode_ids or {}).get(agent_id, episode.id_)

    @property
    def _env_ts(self) -> range:
        """The env steps of this chunk."""
        return range(self.env_t_started, self.env_t)

    def _put(self, agent_id: AgentID, track: AgentTrack) -> None:
        self._tracks[agent_id], self.agent_episodes[agent_id] = track, track.episode

    def _add_history(
        self, steps: list[tuple[Any, ...]], terminateds: Mapping[AgentID, Any], truncateds: Mapping[AgentID, Any]
    ) -> None:
        for index, (observations, actions, rewards, infos, extra) in enumerate(steps):
            if index == self._len_lookback_buffer:
                self._start_chunk()
            is_last = index == len(steps) - 1
            flags: dict[str, Any] = {"terminateds": terminateds, "truncateds": truncateds} if is_last else {}
            self.add_env_step(observations, actions, rewards, infos, extra_model_outputs=extra, **flags)
        if self._len_lookback_buffer == len(steps):
            self._start_chunk()
        if not steps:
            self._apply(MultiAgentStep({}, {}, {}, {}, terminateds, truncateds, {}))

    def _start_chunk(self) -> None:
        for track in self._tracks.values():
            track.start_chunk()
        self._hanging_rewards_begin = {}

    @classmethod
    def from_agent_episodes(  # noqa: PLR0913 - one for each field of an episode
        cls,
        id_: str | None,
        *,
        agent_episodes: Mapping[AgentID, SingleAgentEpisode],
        env_t_of_obs: Mapping[AgentID, Sequence[int] | Array],
        env_t_started: int,
        env_t: int,
        terminateds: Flags,
        truncateds: Flags,
        len_lookback_buffer: int | None = None,
        hanging_actions: Mapping[AgentID, Any] | None = None,
        hanging_extra_model_outputs: Mapping[AgentID, dict[str, Any]] | None = None,
        hanging_rewards: Mapping[AgentID, float] | None = None,
        carried_rewards: Mapping[AgentID, float] | None = None,
    ) -> MultiAgentEpisode:
        """Return the episode around the agents' episodes without copying their data, for views of column blocks.

        The agent episodes become part of this episode: unset `agent_id` and `multi_agent_episode_id` are set, and flags
        that are true in `terminateds` or `truncateds`. The episode's flags are the flags of `__all__`.

        Args:
            env_t_of_obs: ascending env step of each of the agent's observations, its lookback rows included.
            len_lookback_buffer: env steps of lookback; default: back to the earliest lookback row of any agent.
            hanging_actions: actions of agents that have acted since their last observation, with their
                `hanging_extra_model_outputs`.
            hanging_rewards: rewards of agents since their last complete step.
            carried_rewards: the part of `hanging_rewards` at `env_t_started`, which the previous chunk counts.

        Raises:
            ValueError: number of rows or last env step do not fit; `validate()` checks everything.
        """
        self = cls.__new__(cls)
        self._init_fields(uuid.uuid4().hex if id_ is None else id_, env_t_started, env_t, 0)
        self._is_reset = True
        terminated, truncated = _by_agent(terminateds), _by_agent(truncateds)
        self.is_terminated, self.is_truncated = bool(terminated.get(ALL)), bool(truncated.get(ALL))
        for agent_id, episode in agent_episodes.items():
            self._put(agent_id, AgentTrack(episode, _checked_env_t(agent_id, episode, env_t_of_obs, env_t)))
            episode.agent_id = agent_id if episode.agent_id is None else episode.agent_id
            if episode.multi_agent_episode_id is None:
                episode.multi_agent_episode_id = self.id_
            if episode.module_id is not None:
                self._agent_to_module_mapping[agent_id] = episode.module_id
            episode.is_terminated = episode.is_terminated or bool(terminated.get(agent_id))
            episode.is_truncated = episode.is_truncated or bool(truncated.get(agent_id))
        rewards = dict.fromkeys(hanging_actions or {}, 0.0) | dict(hanging_rewards or {})
        add_hanging(
            self._tracks, hanging_actions or {}, hanging_extra_model_outputs or {}, rewards, carried_rewards or {}
        )
        if len_lookback_buffer is None:
            looking_back = [track.env_t[0] for track in self._tracks.values() if track.lookback > 0]
            len_lookback_buffer = env_t_started - min(looking_back, default=env_t_started)
        self._len_lookback_buffer = checked_lookback(len_lookback_buffer)
        return self

    # --- collecting -------------------------------------------------------------------------------

    def add_env_reset(self, *, observations: Mapping[AgentID, Any], infos: Mapping[AgentID, Any] | None = None) -> None:
        """Add the first observations and infos of some agents; raises `ValueError` if already reset."""
        if self._is_reset:
            raise ValueError(f"add_env_reset: episode {self.id_} is already reset (env_t={self.env_t}); make a new one")
        self._is_reset = True
        for agent_id, observation in observations.items():
            self._enter(agent_id, observation, (infos or {}).get(agent_id))
        self._start_time = self._last_step_time = time.perf_counter()

    def add_env_step(
        self,
        observations: Mapping[AgentID, Any],
        actions: Mapping[AgentID, Any],
        rewards: Mapping[AgentID, Any],
        infos: Mapping[AgentID, Any] | None = None,
        *,
        terminateds: Mapping[AgentID, Any] | None = None,
        truncateds: Mapping[AgentID, Any] | None = None,
        extra_model_outputs: Mapping[AgentID, dict[str, Any]] | None = None,
    ) -> None:
        """Add one env step; each dict has some of the agents.

        A key that is present counts, regardless of its value. Infos belong to observations: infos of agents without one
        are dropped. Flags of agents that were never observed are ignored.

        Raises:
            ValueError: the episode is not reset or has ended. Or, naming agent and env step, with nothing added: data
                for an agent that has ended; an action before its first observation or on top of a hanging one; an
                observation without an action since the last; action and observation without a reward; extra model
                outputs without an action or with other keys than before; truncation of a hanging action without a final
                observation; in numpy mode an item of another shape.
        """
        if self.is_terminated or self.is_truncated:
            raise ValueError(f"add_env_step: episode {self.id_} is done (env_t={self.env_t}); make a new episode")
        if not self._is_reset:
            raise ValueError(
                f"add_env_step: episode {self.id_} does not have an observation; call add_env_reset() first"
            )
        extra = extra_model_outputs or {}
        step = MultiAgentStep(observations, actions, rewards, infos or {}, terminateds or {}, truncateds or {}, extra)
        self.env_t += 1
        try:
            self._apply(step)
        except ValueError:
            self.env_t -= 1
            raise
        self._last_step_time = time.perf_counter()
        if self._start_time is None:
            self._start_time = self._last_step_time

    def _apply(self, step: MultiAgentStep) -> None:
        agent_ids = step.agent_ids(self._tracks)
        self._check(step, agent_ids)
        for agent_id in agent_ids:
            track = self._tracks.get(agent_id)
            if track is None:
                self._apply_to_stranger(agent_id, step)
            elif not track.episode.is_done:
                track.add(step, agent_id, self.env_t)
        if step.terminateds or step.truncateds:
            self._update_flags(step)

    def _check(self, step: MultiAgentStep, agent_ids: list[AgentID]) -> None:
        for agent_id in agent_ids:
            track, problem = self._tracks.get(agent_id), None
            if track is not None:
                problem = track.problem_with(step, agent_id)
            elif agent_id in self._ended_agents:
                problem = step.problem_after_end(agent_id)
            elif agent_id in step.actions:
                problem = "acted without an observation to act on; expected actions after the first observation"
            if problem is not None:
                at = f"env step {self.env_t} of episode {self.id_}"
                raise ValueError(f"add_env_step: agent {agent_id!r} {problem} ({at})")

    def _apply_to_stranger(self, agent_id: AgentID, step: MultiAgentStep) -> None:
        if agent_id in step.rewards:
            before = self._hanging_rewards_begin.get(agent_id, 0.0)
            self._hanging_rewards_begin[agent_id] = before + step.rewards[agent_id]
        if agent_id in step.observations:
            episode = self._enter(agent_id, step.observations[agent_id], step.infos.get(agent_id))
            episode.is_terminated, episode.is_truncated = step.flags_of(agent_id)

    def _enter(self, agent_id: AgentID, observation: Any, infos: Any) -> SingleAgentEpisode:
        episode = SingleAgentEpisode(
            agent_id=agent_id,
            module_id=self.module_for(agent_id),
            multi_agent_episode_id=self.id_,
            observation_space=self.observation_space.get(agent_id),
            action_space=self.action_space.get(agent_id),
        )
        episode.add_env_reset(observation, infos)
        if self.is_numpy:
            episode.to_numpy()
        self._put(agent_id, AgentTrack(episode, [self.env_t]))
        return episode

    def _update_flags(self, step: MultiAgentStep) -> None:
        ends = [*(track.flags for track in self._tracks.values()), *self._ended_agents.values()]
        all_ended = bool(ends) and all(any(flags) for flags in ends)
        all_terminated = all_ended and all(terminated for terminated, _ in ends)
        self.is_terminated = bool(step.terminateds.get(ALL)) or all_terminated
        self.is_truncated = bool(step.truncateds.get(ALL)) or (all_ended and not all_terminated)

    def to_numpy(self) -> MultiAgentEpisode:
        """Turn all agents' data except infos and hanging values into columns, in place; return the episode itself.

        Raises `ValueError` or `TypeError`, naming the agent, if a field's items cannot be stacked.
        """
        for agent_id, episode in self.agent_episodes.items():
            try:
                episode.to_numpy()
            except (TypeError, ValueError) as error:
                raise type(error)(f"agent {agent_id!r}: {error}") from None
        return self

    # --- chunks -----------------------------------------------------------------------------------

    def cut(self, len_lookback_buffer: int = 0) -> Self:
        """Return the chunk that continues this episode: length 0, starting at `env_t`, without agents that have ended.

        Each agent has its newest observation, even if that is older than the lookback, and copies of its data of up to
        `len_lookback_buffer` env steps. Hanging actions and rewards also hang in the new chunk; their rewards are
        counted by `get_return(include_hanging_rewards=True)` of this one. Raises `ValueError` if the episode is done or
        not reset.
        """
        if self.is_done or not self._is_reset:
            state = "is done; there is nothing to continue" if self.is_done else "is not reset"
            raise ValueError(f"cut: episode {self.id_} (env_t={self.env_t}) {state}")
        lookback = min(checked_lookback(len_lookback_buffer), self._len_lookback_buffer + len(self))
        chunk = self._chunk(self.env_t, self.env_t, lookback)
        chunk._ended_agents = dict(self._ended_agents)
        for agent_id, track in self._tracks.items():
            if track.episode.is_done:
                chunk._ended_agents[agent_id] = track.flags
            else:
                chunk._put(agent_id, track.cut(self.env_t - lookback))
        chunk._start_time = chunk._last_step_time = self._last_step_time
        return chunk

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
        chunk = self._chunk(env_ts.start, env_ts.stop, lookback)
        chunk._ended_agents = dict(self._ended_agents)
        if start == 0:
            chunk._hanging_rewards_begin = dict(self._hanging_rewards_begin)
        if stop == len(self):
            chunk.is_terminated, chunk.is_truncated = self.is_terminated, self.is_truncated
        for agent_id, track in self._tracks.items():
            if start > 0 and track.has_ended_by(env_ts.start):
                chunk._ended_agents[agent_id] = track.flags
            elif (part := track.slice(env_ts, lookback, self._env_ts)) is not None:
                chunk._put(agent_id, part)
        return chunk

    def _chunk(self, env_t_started: int, env_t: int, lookback: int) -> Self:
        """Return an empty, unfinished episode for a part of this one."""
        chunk = type(self).__new__(type(self))
        chunk._init_fields(self.id_, env_t_started, env_t, lookback)
        chunk._is_reset = self._is_reset
        chunk.observation_space, chunk.action_space = self.observation_space, self.action_space
        chunk.agent_to_module_mapping_fn = self.agent_to_module_mapping_fn
        chunk._agent_to_module_mapping = dict(self._agent_to_module_mapping)
        chunk._custom_data = None if self._custom_data is None else dict(self._custom_data)
        return chunk

    def concat_episode(self, other: MultiAgentEpisode) -> None:
        """Append `other`, the chunk that follows this one, without its lookback and its agents' first observations.

        Raises `ValueError` if `other` has another `id_`, does not start at `env_t`, lacks an agent that has not ended
        or continues one that has ended; if the agents' chunks do not fit; or if this one is done.
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

    def _problem_with_successor(self, other: MultiAgentEpisode) -> str | None:
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
                return f"agent {agent_id!r} has ended (t={episode.t}), but continues in it"
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

    def module_for(self, agent_id: AgentID) -> str:
        """Return the module of the agent; `agent_to_module_mapping_fn` is called once for each agent of an episode."""
        if agent_id not in self._agent_to_module_mapping:
            self._agent_to_module_mapping[agent_id] = self.agent_to_module_mapping_fn(agent_id, self)
        return self._agent_to_module_mapping[agent_id]

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

    def get_return(self, include_hanging_rewards: bool = False) -> float:
        """Return the sum of all agents' rewards (float64, undiscounted) in their complete steps of this chunk.

        With `include_hanging_rewards`: exactly the rewards in this chunk's env steps, so that each reward is counted
        once in the sum over the chunks of an episode.
        """
        total = sum((episode.get_return() for episode in self.agent_episodes.values()), 0.0)
        if not include_hanging_rewards:
            return total
        tracks = self._tracks.values()
        hanging = [*self._hanging_rewards_begin.values(), *(t.reward for t in tracks if t.reward is not None)]
        return float(total + sum(hanging) - sum(t.carried for t in tracks if t.carried is not None))

    def get_duration_s(self) -> float:
        """Return wall time from the reset (or the cut) to the last step, in seconds; 0 for episodes made from data."""
        if self._start_time is None or self._last_step_time is None:
            return 0.0
        return self._last_step_time - self._start_time

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
    def is_reset(self) -> bool:
        """Whether the first observations have been added."""
        return self._is_reset

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
            if problem is None and agent_id in self._ended_agents:
                problem = "it ended before env_t_started"
            if problem is not None:
                raise ValueError(f"episode {self.id_}: agent {agent_id!r}: {problem}")

    # --- state ------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the state of the episode without its function, as plain types like `SingleAgentEpisode.get_state`.

        Raises `TypeError` naming a value without a plain form.
        """
        return {
            "id_": self.id_,
            "env_t_started": int(self.env_t_started),
            "env_t": int(self.env_t),
            "len_lookback_buffer": self._len_lookback_buffer,
            **tracks_to_state(self._tracks),
            "_hanging_rewards_begin": to_plain(self._hanging_rewards_begin, "_hanging_rewards_begin"),
            "_agent_to_module_mapping": to_plain(self._agent_to_module_mapping, "_agent_to_module_mapping"),
            "ended_agents": [[agent_id, *flags] for agent_id, flags in self._ended_agents.items()],
            "is_reset": self._is_reset,
            "is_terminated": bool(self.is_terminated),
            "is_truncated": bool(self.is_truncated),
            "_start_time": self._start_time,
            "_last_step_time": self._last_step_time,
            "custom_data": None if self._custom_data is None else to_plain(self._custom_data, "custom_data"),
            "observation_space": [[a, space_to_dict(space)] for a, space in self.observation_space.items()],
            "action_space": [[a, space_to_dict(space)] for a, space in self.action_space.items()],
        }

    @staticmethod
    def from_state(state: Any, agent_to_module_mapping_fn: ModuleMapping | None = None) -> MultiAgentEpisode:
        """Invert `get_state`; the function is called for the modules of agents that were not there yet.

        Raises `StateError` (a `ValueError`) for any fault in the state.
        """
        check_keys(state, _STATE_KEYS)
        id_ = read_key(state, "id_", (str,), "episode")
        episode = MultiAgentEpisode(id_, agent_to_module_mapping_fn=agent_to_module_mapping_fn)
        episode.env_t_started, episode.env_t = read_env_t(state, "env_t_started"), read_env_t(state, "env_t")
        episode._len_lookback_buffer = read_env_t(state, "len_lookback_buffer", 0)
        episode.is_terminated = read_key(state, "is_terminated", (bool,), "episode")
        episode.is_truncated = read_key(state, "is_truncated", (bool,), "episode")
        episode._is_reset = read_key(state, "is_reset", (bool,), "episode", default=True)
        for agent_id, track in tracks_from_state(state).items():
            episode._put(agent_id, track)
        episode._hanging_rewards_begin = read_by_agent(state, "_hanging_rewards_begin", NUMBER)
        episode._agent_to_module_mapping = read_by_agent(state, "_agent_to_module_mapping", (str,))
        episode._ended_agents = {a: (bool(t), bool(u)) for a, t, u in read_pairs(state, "ended_agents", 3)}
        for name in ("observation_space", "action_space"):
            spaces = {a: space_from_dict(plain, f"episode.{name}") for a, plain in read_pairs(state, name, 2)}
            setattr(episode, name, spaces)
        custom_data = read_key(state, "custom_data", (dict,), "episode", default=None)
        episode._custom_data = None if custom_data is None else read_dict(custom_data, "custom_data")
        episode._start_time, episode._last_step_time = read_clock(state)
        try:
            episode.validate()
        except ValueError as error:
            raise StateError(str(error)) from None
        return episode


# --- arguments ------------------------------------------------------------------------------------


def _by_agent(flags: Flags) -> Mapping[AgentID, Any]:
    return {ALL: flags} if isinstance(flags, bool) else flags


def _history(
    observations: Sequence[Any],
    infos: Sequence[Any],
    actions: Sequence[Any],
    rewards: Sequence[Any],
    extra_model_outputs: Sequence[Any] | None,
) -> list[tuple[Any, ...]]:
    """Return the arguments of each env step after the reset; raises `ValueError` if the lengths do not fit together."""
    steps = max(len(observations) - 1, 0)
    extra = extra_model_outputs or [{}] * steps
    for name, items in {"actions": actions, "rewards": rewards, "extra_model_outputs": extra}.items():
        if len(items) != steps:
            raise ValueError(f"{name} need one dict less than observations, {steps}, got {len(items)}")
    if len(infos) != len(observations):
        raise ValueError(f"infos need one dict for each observation, {len(observations)}, got {len(infos)}")
    return list(zip(observations[1:], actions, rewards, infos[1:], extra, strict=True))


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


_STATE_KEYS = frozenset(MultiAgentEpisode().get_state())
