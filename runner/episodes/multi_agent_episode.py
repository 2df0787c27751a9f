"""The trajectories of several agents in one environment: one `SingleAgentEpisode` each, on a common time axis."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from runner.episodes.agent_track import ALL, AgentID, AgentTrack, MultiAgentStep
from runner.episodes.multi_agent_chunks import MultiAgentChunks, checked_lookback
from runner.episodes.multi_agent_fields import map_to_default_module
from runner.episodes.multi_agent_state import read_state, write_state
from runner.episodes.single_agent_episode import SingleAgentEpisode

if TYPE_CHECKING:
    from gymnasium import Space

Array = np.ndarray[Any, Any]
Flags = bool | Mapping[AgentID, Any]
ModuleMapping = Callable[[AgentID, "MultiAgentEpisode"], str]


class MultiAgentEpisode(MultiAgentChunks):
    """An episode of several agents, or a chunk of one: T = `len(episode)` env steps after H of lookback.

    `agent_episodes` has one `SingleAgentEpisode` for each agent that has been observed. Agents come, skip env
    steps, and leave; `env_t_to_agent_t` says at which env steps each of them was observed. An env step gives each
    agent one of:

    * an action and the observation after it: a complete step of the agent;
    * an action only: it *hangs*, with its extra model outputs, until the agent's next observation completes the
      step; all rewards until then (also before the action) add up to that step's reward;
    * an observation only: completes the hanging action, or is the agent's first one;
    * a reward only: it waits for the agent's next complete step. Rewards before an agent's first observation, and
      after it with no action to follow, are in no step: only `get_return(include_hanging_rewards=True)` has them;
    * an end. Terminated with a hanging action and without a final observation, the newest observation is repeated
      as the final one, which nothing is learned from. Truncated, that is an error: the value of the final
      observation is needed.

    An agent's flags are its own; `__all__` ends the agents without a flag. The episode is terminated if the
    environment said so for `__all__` or if every agent terminated; it is truncated if the environment said so, or
    if every agent ended and at least one of them did not terminate.

    A chunk from `cut()` takes along what hangs, and remembers who has ended: an agent that ended at or before
    `env_t_started` is not in it.
    """

    __slots__ = ()

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

        The history is added step by step as `add_env_step` does it; `observations` (and `infos`) have one dict
        more than `actions`, `rewards` and `extra_model_outputs`. `terminateds` and `truncateds` belong to its
        last step.

        Args:
            id_: default: a new UUID's hex digits.
            observation_space, action_space: the agents' spaces, by agent id (a `gymnasium.spaces.Dict` will do).
            env_t_started: env step after the lookback; default 0.
            agent_t_started: each agent's own time step there; default 0.
            len_lookback_buffer: how many of the given env steps are lookback (capped to what is given); "auto":
                all, so that the episode's length is 0.
            agent_episode_ids: ids of the agents' own episodes; default: new UUIDs.
            agent_module_ids: modules of agents, which `agent_to_module_mapping_fn` is then not asked for.
            agent_to_module_mapping_fn: module id from an agent id and this episode, asked once for each agent;
                default: "default_policy".

        Raises:
            ValueError: the history's lengths do not fit together, or what `add_env_step` raises.
        """
        self._init_fields(uuid.uuid4().hex if id_ is None else id_, env_t_started or 0, env_t_started or 0, 0)
        self.observation_space, self.action_space = dict(observation_space or {}), dict(action_space or {})
        self.agent_to_module_mapping_fn = agent_to_module_mapping_fn or map_to_default_module
        self._agent_to_module_mapping = dict(agent_module_ids or {})
        if not observations:
            _check_history(observations, infos, actions, rewards, extra_model_outputs)
            return
        actions, rewards = actions or [], rewards or []
        infos = infos or [{}] * len(observations)
        extra_model_outputs = extra_model_outputs or [{}] * len(actions)
        _check_history(observations, infos, actions, rewards, extra_model_outputs)
        lookback = len(rewards) if len_lookback_buffer == "auto" else checked_lookback(len_lookback_buffer)
        self._len_lookback_buffer = min(lookback, len(rewards))
        self.env_t -= self._len_lookback_buffer
        self.add_env_reset(observations=observations[0], infos=infos[0])
        steps = list(zip(observations[1:], actions, rewards, infos[1:], extra_model_outputs, strict=True))
        self._add_history(steps, *_by_agent(terminateds, truncateds))
        self._number_agents(agent_t_started or {}, agent_episode_ids or {})

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
        """Return the episode directly around the agents' ones, whose data are not copied: for views of column blocks.

        The agent episodes become this episode's: their unset `agent_id` and `multi_agent_episode_id` are set, and
        the flags of agents that are true in `terminateds` or `truncateds`. The episode's flags are the flags of
        `__all__`.

        Args:
            env_t_of_obs: ascending env step of each of the agent's observations, its lookback rows included.
            len_lookback_buffer: env steps of lookback; default: back to the earliest lookback row of any agent.
            hanging_actions: of agents that have acted since their last observation, with their
                `hanging_extra_model_outputs`.
            hanging_rewards: given to agents since their last complete step.
            carried_rewards: the part of `hanging_rewards` at `env_t_started` (what the chunk before counts).

        Raises:
            ValueError: number of rows or last env step do not fit; `validate()` checks everything.
        """
        self = cls.__new__(cls)
        self._init_fields(uuid.uuid4().hex if id_ is None else id_, env_t_started, env_t, 0)
        self._is_reset = True
        self.is_terminated, self.is_truncated = _flag_of_all(terminateds), _flag_of_all(truncateds)
        acted, extra, rewards = hanging_actions or {}, hanging_extra_model_outputs or {}, hanging_rewards or {}
        carried = carried_rewards or {}
        if unknown := [agent_id for agent_id in (*acted, *rewards, *carried) if agent_id not in agent_episodes]:
            raise ValueError(f"episode {self.id_}: actions or rewards hang of agents that are not in it: {unknown}")
        for agent_id, episode in agent_episodes.items():
            track = AgentTrack(episode, self._checked_env_t(agent_id, episode, env_t_of_obs.get(agent_id, ())))
            if agent_id in acted:
                track.begun, track.reward = (acted[agent_id], extra.get(agent_id, {})), 0.0
            track.reward = rewards.get(agent_id, track.reward)
            track.carried = carried.get(agent_id)
            self._put(agent_id, track)
            self._adopt(agent_id, episode, *_by_agent(terminateds, truncateds))
        if len_lookback_buffer is None:
            looking_back = [track.env_t[0] for track in self._tracks.values() if track.lookback > 0]
            len_lookback_buffer = env_t_started - min(looking_back, default=env_t_started)
        self._len_lookback_buffer = checked_lookback(len_lookback_buffer)
        return self

    def _checked_env_t(self, agent_id: AgentID, episode: SingleAgentEpisode, given: Sequence[int] | Array) -> list[int]:
        times = given.tolist() if isinstance(given, np.ndarray) else list(given)
        rows = episode.observations.len_incl_lookback()
        if len(times) != rows or not rows:
            raise ValueError(f"agent {agent_id!r} has {rows} observations, but env_t_of_obs has {len(times)} for it")
        if times[-1] > self.env_t:
            raise ValueError(f"env_t_of_obs of agent {agent_id!r} goes to {times[-1]}, beyond env_t={self.env_t}")
        return times

    def _adopt(
        self,
        agent_id: AgentID,
        episode: SingleAgentEpisode,
        terminateds: Mapping[AgentID, Any],
        truncateds: Mapping[AgentID, Any],
    ) -> None:
        episode.agent_id = agent_id if episode.agent_id is None else episode.agent_id
        if episode.multi_agent_episode_id is None:
            episode.multi_agent_episode_id = self.id_
        if episode.module_id is not None:
            self._agent_to_module_mapping[agent_id] = episode.module_id
        episode.is_terminated = episode.is_terminated or bool(terminateds.get(agent_id))
        episode.is_truncated = episode.is_truncated or bool(truncateds.get(agent_id))

    def _add_history(
        self,
        steps: list[tuple[Any, ...]],
        terminateds: Mapping[AgentID, Any],
        truncateds: Mapping[AgentID, Any],
    ) -> None:
        for index, (observations, actions, rewards, infos, extra) in enumerate(steps):
            if index == self._len_lookback_buffer:
                self._begin_chunk()
            is_last = index == len(steps) - 1
            flags: dict[str, Any] = {"terminateds": terminateds, "truncateds": truncateds} if is_last else {}
            self.add_env_step(observations, actions, rewards, infos, extra_model_outputs=extra, **flags)
        if self._len_lookback_buffer == len(steps):
            self._begin_chunk()
        if not steps:
            self._apply(MultiAgentStep({}, {}, {}, {}, terminateds, truncateds, {}))

    def _begin_chunk(self) -> None:
        """Make all agents' complete steps lookback."""
        for track in self._tracks.values():
            track.start_chunk()
        self._hanging_rewards_begin = {}

    def _number_agents(self, agent_t_started: Mapping[AgentID, int], ids: Mapping[AgentID, str]) -> None:
        for agent_id, episode in self.agent_episodes.items():
            episode.t_started = agent_t_started.get(agent_id, 0)
            episode.t = episode.t_started + len(episode.rewards)
            episode.id_ = ids.get(agent_id, episode.id_)

    # --- collecting -------------------------------------------------------------------------------

    def add_env_reset(self, *, observations: Mapping[AgentID, Any], infos: Mapping[AgentID, Any] | None = None) -> None:
        """Add the first observations, of the agents that have one, and their infos; `ValueError` if already reset."""
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
        """Add one env step: what agents did, and what they got for it; each dict has some of the agents.

        A key that is there counts, whatever its value. Infos belong to observations: infos of agents without one
        are dropped. Flags of agents that were never observed are ignored.

        Raises:
            ValueError: before a reset or after the end; or naming agent and env step, with nothing added: data for
                an agent that has ended; an action before its first observation or on top of a hanging one; an
                observation without an action since the last; action and observation without a reward; extra
                model outputs without an action or with other keys than before; truncation of a hanging action
                without a final observation; in numpy mode an item of another shape.
        """
        if self.is_terminated or self.is_truncated:
            raise ValueError(f"add_env_step: episode {self.id_} is done (env_t={self.env_t}); make a new episode")
        if not self._is_reset:
            raise ValueError(f"add_env_step: episode {self.id_} has no observation; call add_env_reset() first")
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
                problem = "acted, but has had no observation to act on; allowed: actions after the first observation"
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
        ends = [(e.is_terminated, e.is_truncated) for e in self.agent_episodes.values()]
        ends += self._ended_agents.values()
        all_ended = bool(ends) and all(any(flags) for flags in ends)
        all_terminated = all_ended and all(terminated for terminated, _ in ends)
        self.is_terminated = bool(step.terminateds.get(ALL)) or all_terminated
        self.is_truncated = bool(step.truncateds.get(ALL)) or (all_ended and not all_terminated)

    def to_numpy(self) -> MultiAgentEpisode:
        """Turn every agent's data but infos into columns, in place, and return the episode itself; what hangs stays.

        Raises `ValueError` or `TypeError`, naming the agent, if a field's items cannot be stacked.
        """
        for agent_id, episode in self.agent_episodes.items():
            try:
                episode.to_numpy()
            except (TypeError, ValueError) as error:
                raise type(error)(f"agent {agent_id!r}: {error}") from None
        return self

    # --- state ------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return all of the episode but `agent_to_module_mapping_fn` as plain types, as
        `SingleAgentEpisode.get_state`."""
        return write_state(self)

    @staticmethod
    def from_state(state: Any, agent_to_module_mapping_fn: ModuleMapping | None = None) -> MultiAgentEpisode:
        """Invert `get_state`; the function is asked for the modules of agents that were not there yet.

        Raises `StateError` (a `ValueError`) for anything that is wrong with the state.
        """
        episode = MultiAgentEpisode.__new__(MultiAgentEpisode)
        episode._init_fields("", 0, 0, 0)
        episode.agent_to_module_mapping_fn = agent_to_module_mapping_fn or map_to_default_module
        read_state(episode, state)
        return episode


# --- arguments ------------------------------------------------------------------------------------


def _flag_of_all(flags: Flags) -> bool:
    return flags if isinstance(flags, bool) else bool(flags.get(ALL))


def _by_agent(terminateds: Flags, truncateds: Flags) -> tuple[Mapping[AgentID, Any], Mapping[AgentID, Any]]:
    by_agent: list[Mapping[AgentID, Any]] = []
    for flags in (terminateds, truncateds):
        by_agent.append({ALL: flags} if isinstance(flags, bool) else flags)
    return by_agent[0], by_agent[1]


def _check_history(
    observations: Sequence[Any] | None,
    infos: Sequence[Any] | None,
    actions: Sequence[Any] | None,
    rewards: Sequence[Any] | None,
    extra_model_outputs: Sequence[Any] | None,
) -> None:
    steps = max(len(observations or ()) - 1, 0)
    given = {"actions": actions, "rewards": rewards, "extra_model_outputs": extra_model_outputs}
    for name, items in given.items():
        if len(items or ()) != steps:
            raise ValueError(f"{name} need one dict less than observations, {steps}, got {len(items or ())}")
    if len(infos or ()) != len(observations or ()):
        raise ValueError(
            f"infos need one dict for each of observations, {len(observations or ())}, got {len(infos or ())}"
        )
