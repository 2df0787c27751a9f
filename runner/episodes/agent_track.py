"""One agent's part of a multi-agent episode and of each env step, and their plain form for checkpoints."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from runner.episodes.nested import StateError, from_plain, read_key, to_plain
from runner.episodes.single_agent_episode import SingleAgentEpisode

AgentID = str | int
Begun = tuple[Any, dict[str, Any]]  # action and extra model outputs of a step without a result yet
ALL = "__all__"  # key of terminateds and truncateds for all agents

Slice = slice  # the class has a method of this name


@dataclass(slots=True)
class MultiAgentStep:
    """Actions of all agents and the results, each by agent id; a key counts regardless of its value."""

    observations: Mapping[AgentID, Any]
    actions: Mapping[AgentID, Any]
    rewards: Mapping[AgentID, Any]
    infos: Mapping[AgentID, Any]
    terminateds: Mapping[AgentID, Any]
    truncateds: Mapping[AgentID, Any]
    extra_model_outputs: Mapping[AgentID, dict[str, Any]]

    def agent_ids(self, known: Iterable[AgentID]) -> list[AgentID]:
        """Return the agents of this step, including all `known` ones if `__all__` is flagged."""
        ids = dict.fromkeys(self.observations)
        for agents in (self.actions, self.rewards, self.extra_model_outputs, self.terminateds, self.truncateds):
            if agents:
                ids.update(dict.fromkeys(agents))
        if ALL in ids:
            del ids[ALL]
            if self.terminateds.get(ALL) or self.truncateds.get(ALL):
                ids.update(dict.fromkeys(known))
        return list(ids)

    def flags_of(self, agent_id: AgentID) -> tuple[bool, bool]:
        """Return terminated and truncated: the agent's flags, or the flags of `__all__` if neither is set.

        After a time limit has truncated each agent, an environment may also set `terminateds["__all__"]` to mark the
        end; this does not terminate the agents.
        """
        if not self.terminateds and not self.truncateds:
            return False, False
        flags = bool(self.terminateds.get(agent_id)), bool(self.truncateds.get(agent_id))
        return flags if any(flags) else (bool(self.terminateds.get(ALL)), bool(self.truncateds.get(ALL)))

    def problem_after_end(self, agent_id: AgentID) -> str | None:
        """Return the problem with this step for an agent that has ended, or None."""
        data = ("observations", "actions", "rewards", "extra_model_outputs")
        got = [name for name in data if agent_id in getattr(self, name)]
        return f"has ended, but got {', '.join(got)}; expected no further data" if got else None


@dataclass(slots=True)
class AgentTrack:
    """One agent in an env episode: its episode, the env step of each observation, and its unfinished step.

    Attributes:
        episode: the agent's complete steps.
        env_t: env step of each observation, lookback included; ascending.
        begun: hanging action and extra model outputs, which wait for the next observation, or None.
        reward: sum of the rewards since the newest complete step, or None. A begun step always has one.
        carried: part of `reward` that the previous chunk has counted, or None.
    """

    episode: SingleAgentEpisode
    env_t: list[int]
    begun: Begun | None = None
    reward: Any = None
    carried: Any = None

    @property
    def lookback(self) -> int:
        """The number of the agent's steps before this chunk."""
        return self.episode.observations.lookback

    @property
    def flags(self) -> tuple[bool, bool]:
        """Whether the agent has terminated, and whether it was truncated."""
        return self.episode.is_terminated, self.episode.is_truncated

    # --- collecting -------------------------------------------------------------------------------

    def problem_with(self, step: MultiAgentStep, agent_id: AgentID) -> str | None:
        """Return the reason why this track cannot add its part of an env step, or None."""
        if self.episode.is_done:
            return step.problem_after_end(agent_id)
        problem = self._problem_with_action(step, agent_id) or self._problem_with_answer(step, agent_id)
        return self._problem_with_shapes(step, agent_id) if problem is None and self.episode.is_numpy else problem

    def _problem_with_action(self, step: MultiAgentStep, agent_id: AgentID) -> str | None:
        if agent_id not in step.actions:
            if agent_id in step.extra_model_outputs:
                return "has extra_model_outputs without an action; expected both together"
            return None
        if self.begun is not None:
            return "acted again before it got an observation for its last action; expected one action per observation"
        outputs, expected = step.extra_model_outputs.get(agent_id) or {}, self.episode.extra_model_outputs
        if outputs.keys() != expected.keys() and self.episode.rewards.len_incl_lookback() > 0:
            return f"has the extra_model_outputs {sorted(outputs)}; expected {sorted(expected)}, as in its first step"
        return None

    def _problem_with_answer(self, step: MultiAgentStep, agent_id: AgentID) -> str | None:
        acts, waits = agent_id in step.actions, self.begun is not None
        if agent_id in step.observations:
            if not acts and not waits:
                return "got an observation, but has not acted on the previous one; expected one observation per action"
            if acts and agent_id not in step.rewards:
                return "acted and got an observation, but no reward; add it to rewards (0.0 if there is none)"
        elif acts or waits:
            terminated, truncated = step.flags_of(agent_id)
            if truncated and not terminated:
                return (
                    "is truncated after it acted, but got no final observation; add it to observations "
                    "(the value of the truncated rest is estimated from it)"
                )
        return None

    def _problem_with_shapes(self, step: MultiAgentStep, agent_id: AgentID) -> str | None:
        """Check in numpy mode that the items fit the columns, before anything is appended for any agent."""
        episode, outputs = self.episode, step.extra_model_outputs.get(agent_id) or {}
        fields = {"observations": episode.observations, "actions": episode.actions, "rewards": episode.rewards}
        items = [(name, fields[name], getattr(step, name)) for name in fields]
        given = [(name, buffer, by_agent[agent_id]) for name, buffer, by_agent in items if agent_id in by_agent]
        extra = episode.extra_model_outputs
        given += [(f"extra_model_outputs[{key!r}]", extra[key], out) for key, out in outputs.items() if key in extra]
        for name, buffer, item in given:
            try:
                buffer.as_row(item)
            except (TypeError, ValueError) as error:
                return f"has {name} that do not fit its columns: {error}"
        return None

    def add(self, step: MultiAgentStep, agent_id: AgentID, env_t: int) -> None:
        """Add the agent's part of an env step for which `problem_with` returned None."""
        episode, begun, reward = self.episode, self.begun, self.reward
        terminated, truncated = step.flags_of(agent_id)
        if agent_id in step.actions:
            begun = step.actions[agent_id], step.extra_model_outputs.get(agent_id) or {}
        if agent_id in step.rewards:
            reward = step.rewards[agent_id] if reward is None else reward + step.rewards[agent_id]
        if begun is None:  # the agent did not have to act
            self.reward = reward
            episode.is_terminated, episode.is_truncated = terminated, truncated
            return
        reward = 0.0 if reward is None else reward
        if agent_id in step.observations:
            observation, infos = step.observations[agent_id], step.infos.get(agent_id)
        elif terminated:  # learners ignore this observation
            observation = episode.get_observations(-1)
            infos = step.infos[agent_id] if agent_id in step.infos else episode.get_infos(-1)
        else:
            self.begun, self.reward = begun, reward
            return
        episode.add_env_step(
            observation,
            begun[0],
            reward,
            infos,
            terminated=terminated,
            truncated=truncated,
            extra_model_outputs=begun[1],
        )
        self.begun = self.reward = None
        self.env_t.append(env_t)

    def start_chunk(self) -> None:
        """Turn all complete steps into lookback."""
        episode, lookback = self.episode, self.episode.rewards.len_incl_lookback()
        fields = (episode.observations, episode.infos, episode.actions, episode.rewards)
        for buffer in (*fields, *episode.extra_model_outputs.values()):
            buffer.lookback = lookback
        self.carried = self.reward

    # --- parts ------------------------------------------------------------------------------------

    def cut(self, since: int) -> AgentTrack:
        """Return the track that continues this one, with the steps since env step `since` as lookback.

        It also has the newest observation if that is older.
        """
        newest = len(self.env_t) - 1
        before = newest - bisect_left(self.env_t, since, hi=newest)
        episode, env_t = self.episode.cut(before), self.env_t[newest - before :]
        return AgentTrack(episode, env_t, self.begun, self.reward, carried=self.reward)

    def has_ended_by(self, env_t: int) -> bool:
        """Return whether the agent has neither an observation nor a reward after `env_t`."""
        newest = self.env_t[-1]
        return self.episode.is_done and (newest < env_t or (newest == env_t and self.reward is None))

    def slice(self, env_ts: range, lookback: int, chunk: range) -> AgentTrack | None:
        """Return the agent's part of the env steps `env_ts` of the chunk, or None if there is none.

        Args:
            env_ts: from the first env step of the slice to its last one; the observation after the last one is
                at `env_ts.stop`.
            lookback: number of env steps before it.
            chunk: env steps of the chunk that this track belongs to.
        """
        first = self._first_row(env_ts, chunk)
        if first is None:
            return None
        times, num_past = self.env_t, self.lookback
        last = max(first, bisect_right(times, env_ts.stop) - 1)
        before = first - bisect_left(times, env_ts.start - lookback, hi=first)
        episode = self.episode.slice(Slice(first - num_past, last - num_past), len_lookback_buffer=before)
        part = AgentTrack(episode, times[first - before : last + 1])
        if times[last] < env_ts.stop:
            part.begun, part.reward = self._begun_at(last)
        if env_ts.start == chunk.start:
            part.carried = self.carried
        elif times[first] < env_ts.start:
            part.carried = 0.0 if part.reward is None else part.reward
        return part

    def _first_row(self, env_ts: range, chunk: range) -> int | None:
        """Return the row of the first observation in the slice, counted with the lookback."""
        newest = len(self.env_t) - 1
        if env_ts.start == chunk.start:
            first = self.lookback
        elif self.env_t[newest] < env_ts.start:  # it waits: needed only if the episode can continue
            return newest if env_ts.stop == chunk.stop else None
        else:
            first = bisect_left(self.env_t, env_ts.start, lo=self.lookback)
        return first if self.env_t[first] <= env_ts.stop else None

    def _begun_at(self, row: int) -> tuple[Begun | None, Any]:
        """Return the hanging values after the observation in `row`: action with outputs, and reward up to the next."""
        if row == len(self.env_t) - 1:
            return self.begun, self.reward
        episode, index = self.episode, row - self.lookback
        outputs = {key: buffer._get(index, True) for key, buffer in episode.extra_model_outputs.items()}
        return (episode.actions._get(index, True), outputs), episode.rewards._get(index, True)

    def append(self, other: AgentTrack) -> None:
        """Append the chunk that follows this one, without its lookback and first observation."""
        self.episode.concat_episode(other.episode)
        self.env_t += other.env_t[other.lookback + 1 :]
        self.begun, self.reward = other.begun, other.reward

    def without_lookback(self) -> AgentTrack:
        """Return a track of this chunk's steps, to which other tracks can be appended without changing this one."""
        episode = self.episode.slice(Slice(None), len_lookback_buffer=0)
        return AgentTrack(episode, self.env_t[self.lookback :], self.begun, self.reward)

    # --- checks -----------------------------------------------------------------------------------

    def problem(self, chunk: range) -> str | None:
        """Return the problem with this track in a chunk of these env steps, or None."""
        try:
            self.episode.validate()
        except ValueError as error:
            return str(error)
        env_t, lookback, rows = self.env_t, self.lookback, self.episode.observations.len_incl_lookback()
        if len(env_t) != rows or not env_t:
            return f"{rows} observations, but {len(env_t)} env steps for them"
        if any(a >= b for a, b in pairwise(env_t)) or env_t[-1] > chunk.stop:
            return f"env steps of observations must ascend to at most env_t={chunk.stop}, got {env_t!r:.80}"
        if lookback and env_t[lookback - 1] >= chunk.start:
            return f"a lookback observation is at env step {env_t[lookback - 1]}, env_t_started is {chunk.start}"
        if len(env_t) > lookback + 1 and env_t[lookback + 1] <= chunk.start:
            return f"two observations up to env_t_started={chunk.start} are not lookback"
        if self.begun is not None and self.episode.is_done:
            return "it has ended, but has a hanging action"
        return None


def add_hanging(
    tracks: Mapping[AgentID, AgentTrack],
    actions: Mapping[AgentID, Any],
    outputs: Mapping[AgentID, dict[str, Any]],
    rewards: Mapping[AgentID, Any],
    carried: Mapping[AgentID, Any],
) -> None:
    """Add hanging values to new tracks; raises `ValueError` naming unknown agents."""
    if unknown := [agent_id for agent_id in (*actions, *rewards, *carried) if agent_id not in tracks]:
        raise ValueError(f"hanging actions or rewards of agents that are not in the episode: {unknown}")
    for agent_id, track in tracks.items():
        if agent_id in actions:
            track.begun = actions[agent_id], outputs.get(agent_id, {})
        track.reward, track.carried = rewards.get(agent_id), carried.get(agent_id)


NUMBER = (int, float, np.generic, np.ndarray)  # types of rewards

# Names of dicts by agent id, in the plain form of `runner.episodes.nested`.
_ACTIONS, _OUTPUTS = "_hanging_actions_end", "_hanging_extra_model_outputs_end"
_REWARDS, _CARRIED = "_hanging_rewards_end", "_carried_rewards"


def tracks_to_state(tracks: Mapping[AgentID, AgentTrack]) -> dict[str, Any]:
    """Return the tracks as plain types."""
    agents = tracks.items()
    by_agent = {
        _ACTIONS: {agent_id: track.begun[0] for agent_id, track in agents if track.begun is not None},
        _OUTPUTS: {agent_id: track.begun[1] for agent_id, track in agents if track.begun is not None},
        _REWARDS: {agent_id: track.reward for agent_id, track in agents if track.reward is not None},
        _CARRIED: {agent_id: track.carried for agent_id, track in agents if track.carried is not None},
    }
    return {
        "agent_episodes": [[agent_id, track.episode.get_state()] for agent_id, track in agents],
        "env_t_of_obs": [[agent_id, list(map(int, track.env_t))] for agent_id, track in agents],
        **{name: to_plain(values, name) for name, values in by_agent.items()},
    }


def tracks_from_state(state: dict[str, Any]) -> dict[AgentID, AgentTrack]:
    """Invert `tracks_to_state`; raises `StateError`."""
    actions, outputs = read_by_agent(state, _ACTIONS), read_by_agent(state, _OUTPUTS, (dict,))
    rewards, carried = read_by_agent(state, _REWARDS, NUMBER), read_by_agent(state, _CARRIED, NUMBER)
    if outputs.keys() != actions.keys() or not actions.keys() <= rewards.keys():
        raise StateError(
            f"episode: each of {_ACTIONS} ({list(actions)!r:.80}) needs one of {_OUTPUTS} and of {_REWARDS}"
        )
    states = dict(read_pairs(state, "agent_episodes", 2))
    times = {agent_id: _checked_times(agent_id, env_t) for agent_id, env_t in read_pairs(state, "env_t_of_obs", 2)}
    if states.keys() != times.keys():
        raise StateError(
            f"episode: env steps of observations are for the agents {list(times)}, expected {list(states)}"
        )
    tracks = {a: AgentTrack(SingleAgentEpisode.from_state(one), times[a]) for a, one in states.items()}
    try:
        add_hanging(tracks, actions, outputs, rewards, carried)
    except ValueError as error:
        raise StateError(f"episode: {error}") from None
    return tracks


def _checked_times(agent_id: AgentID, times: Any) -> list[int]:
    if not isinstance(times, (list, tuple)) or not all(type(env_t) is int and abs(env_t) < 2**62 for env_t in times):
        raise StateError(f"episode.env_t_of_obs: agent {agent_id!r}: expected a list of ints, got {times!r:.80}")
    return list(times)


def read_pairs(state: dict[str, Any], key: str, length: int) -> list[Any]:
    """Return lists of `length` items that each begin with another agent id; raises `StateError`."""
    rows = read_key(state, key, (list, tuple), "episode", default=())
    seen: set[AgentID] = set()
    for row in rows:
        if not isinstance(row, (list, tuple)) or len(row) != length or not _is_agent_id(row[0]) or row[0] in seen:
            raise StateError(
                f"episode.{key}: expected lists of {length}, each beginning with another agent id (str or int), "
                f"got {row!r:.80}"
            )
        seen.add(row[0])
    return list(rows)


def read_by_agent(state: dict[str, Any], name: str, types: tuple[type, ...] = (object,)) -> dict[AgentID, Any]:
    """Return a dict by agent id whose values have one of `types`; raises `StateError`."""
    found = read_dict(read_key(state, name, (dict,), "episode", default={}), name)
    if wrong := [agent_id for agent_id in found if not _is_agent_id(agent_id)]:
        raise StateError(f"episode.{name}: expected agent ids (str or int) as keys, got {wrong!r:.80}")
    for agent_id, value in found.items():
        if not isinstance(value, types):
            expected = "a number" if types is NUMBER else "a dict" if types == (dict,) else types[0].__name__
            got = f"{type(value).__name__} {value!r:.40}"
            raise StateError(f"episode.{name}: agent {agent_id!r}: expected {expected}, got {got}")
    return found


def read_dict(plain: dict[str, Any], name: str) -> dict[Any, Any]:
    """Return a dict from its plain form; raises `StateError`."""
    found = from_plain(plain, f"episode.{name}")
    if not isinstance(found, dict):
        raise StateError(f"episode.{name}: expected a dict, got {type(found).__name__}")
    return found


def _is_agent_id(value: Any) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def read_env_t(state: dict[str, Any], key: str, low: int = -(2**62)) -> int:
    """Return an env step of at least `low`; raises `StateError`."""
    env_t: int = read_key(state, key, (int,), "episode")
    if not low <= env_t < 2**62:
        raise StateError(f"episode.{key}: expected an env step of at least {low} and below 2**62, got {env_t}")
    return env_t
