"""Write what a multi-agent episode has by agent as plain types, without pickle, and read it back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from runner.episodes.agent_track import AgentID, AgentTrack, add_hanging
from runner.episodes.nested import StateError, from_plain, read_key, to_plain
from runner.episodes.single_agent_episode import SingleAgentEpisode

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
        raise StateError(f"episode: env steps are known of the agents {list(times)}, expected {list(states)}")
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
    """Return a dict by agent id whose values are of `types`; raises `StateError`."""
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
