"""Write a multi-agent episode as plain types, without pickle, and read it back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from runner.episodes.agent_track import AgentID, AgentTrack
from runner.episodes.multi_agent_fields import MultiAgentFields
from runner.episodes.nested import StateError, from_plain, read_key, to_plain
from runner.episodes.single_agent_episode import SingleAgentEpisode
from runner.episodes.spaces import space_from_dict, space_to_dict

if TYPE_CHECKING:
    from gymnasium import Space

_WHERE = "episode"
# Keys of dicts by agent id. They are written in the plain form of `runner.episodes.nested`.
_MODULES, _ACTIONS, _OUTPUTS = "_agent_to_module_mapping", "_hanging_actions_end", "_hanging_extra_model_outputs_end"
_REWARDS, _REWARDS_BEFORE, _CARRIED = "_hanging_rewards_end", "_hanging_rewards_begin", "_carried_rewards"
_BY_AGENT = (_MODULES, _ACTIONS, _OUTPUTS, _REWARDS, _REWARDS_BEFORE, _CARRIED)
_SPACES = ("observation_space", "action_space")
_KEYS = frozenset(
    {
        "id_",
        "agent_episodes",
        "env_t_started",
        "env_t",
        "env_t_of_obs",
        "len_lookback_buffer",
        "ended_agents",
        "is_reset",
        "is_terminated",
        "is_truncated",
        "_start_time",
        "_last_step_time",
        "custom_data",
        *_BY_AGENT,
        *_SPACES,
    }
)


def write_state(episode: MultiAgentFields) -> dict[str, Any]:
    """Return the state of an episode, without its function.

    Raises:
        TypeError: a value has no plain form; the message names its place.
    """
    tracks, custom_data = episode._tracks.items(), episode._custom_data
    by_agent = {
        _MODULES: episode._agent_to_module_mapping,
        _ACTIONS: {agent_id: track.begun[0] for agent_id, track in tracks if track.begun is not None},
        _OUTPUTS: {agent_id: track.begun[1] for agent_id, track in tracks if track.begun is not None},
        _REWARDS: {agent_id: track.reward for agent_id, track in tracks if track.reward is not None},
        _REWARDS_BEFORE: episode._hanging_rewards_begin,
        _CARRIED: {agent_id: track.carried for agent_id, track in tracks if track.carried is not None},
    }
    return {
        "id_": episode.id_,
        "agent_episodes": [[agent_id, track.episode.get_state()] for agent_id, track in tracks],
        "env_t_started": int(episode.env_t_started),
        "env_t": int(episode.env_t),
        "env_t_of_obs": [[agent_id, list(map(int, track.env_t))] for agent_id, track in tracks],
        "len_lookback_buffer": episode._len_lookback_buffer,
        "ended_agents": [[agent_id, *flags] for agent_id, flags in episode._ended_agents.items()],
        "is_reset": episode._is_reset,
        "is_terminated": bool(episode.is_terminated),
        "is_truncated": bool(episode.is_truncated),
        "_start_time": episode._start_time,
        "_last_step_time": episode._last_step_time,
        "custom_data": None if custom_data is None else to_plain(custom_data, "custom_data"),
        **{name: to_plain(values, name) for name, values in by_agent.items()},
        **{name: [[a, space_to_dict(s)] for a, s in getattr(episode, name).items()] for name in _SPACES},
    }


def read_state(episode: MultiAgentFields, state: Any) -> None:
    """Fill an empty episode; raises `StateError`, after which the episode must not be used."""
    if not isinstance(state, dict):
        raise StateError(f"{_WHERE}: expected a dict, got {type(state).__name__}")
    if unknown := [str(key)[:40] for key in state if key not in _KEYS]:
        raise StateError(f"{_WHERE}: unknown keys {unknown[:8]}; allowed: {', '.join(sorted(_KEYS))}")
    episode.id_ = read_key(state, "id_", (str,), _WHERE)
    episode.env_t_started = _read_env_t(state, "env_t_started")
    episode.env_t = _read_env_t(state, "env_t")
    episode._len_lookback_buffer = _read_env_t(state, "len_lookback_buffer", 0)
    for name in ("is_terminated", "is_truncated"):
        setattr(episode, name, read_key(state, name, (bool,), _WHERE))
    episode._is_reset = read_key(state, "is_reset", (bool,), _WHERE, default=True)
    by_agent = {name: _read_by_agent(state, name) for name in _BY_AGENT}
    _check_by_agent(by_agent)
    episode._agent_to_module_mapping, episode._hanging_rewards_begin = by_agent[_MODULES], by_agent[_REWARDS_BEFORE]
    _read_tracks(episode, state, by_agent)
    episode._ended_agents = {
        agent_id: (bool(terminated), bool(truncated))
        for agent_id, terminated, truncated in _read_pairs(state, "ended_agents", 3)
    }
    for name in _SPACES:
        setattr(episode, name, _read_spaces(state, name))
    custom_data = read_key(state, "custom_data", (dict,), _WHERE, default=None)
    episode._custom_data = None if custom_data is None else _dict_of(custom_data, "custom_data")
    episode._start_time, episode._last_step_time = _read_clock(state)
    try:
        episode.validate()
    except ValueError as error:
        raise StateError(str(error)) from None


def _read_tracks(episode: MultiAgentFields, state: dict[str, Any], by_agent: dict[str, dict[AgentID, Any]]) -> None:
    states = dict(_read_pairs(state, "agent_episodes", 2))
    times = {a: _checked_times(a, env_t) for a, env_t in _read_pairs(state, "env_t_of_obs", 2)}
    if states.keys() != times.keys():
        raise StateError(f"{_WHERE}: env steps are known of the agents {list(times)}, expected {list(states)}")
    hanging = (agent_id for name in (_ACTIONS, _REWARDS, _CARRIED) for agent_id in by_agent[name])
    if unknown := [agent_id for agent_id in hanging if agent_id not in states]:
        raise StateError(f"{_WHERE}: actions or rewards hang of agents that are not in it: {unknown}")
    for agent_id, agent_state in states.items():
        track = AgentTrack(SingleAgentEpisode.from_state(agent_state), times[agent_id])
        if agent_id in by_agent[_ACTIONS]:
            track.begun = by_agent[_ACTIONS][agent_id], by_agent[_OUTPUTS][agent_id]
        track.reward, track.carried = by_agent[_REWARDS].get(agent_id), by_agent[_CARRIED].get(agent_id)
        episode._put(agent_id, track)


def _read_env_t(state: dict[str, Any], key: str, low: int = -(2**62)) -> int:
    env_t: int = read_key(state, key, (int,), _WHERE)
    if not low <= env_t < 2**62:
        raise StateError(f"{_WHERE}.{key}: expected an env step of at least {low} and below 2**62, got {env_t}")
    return env_t


def _read_pairs(state: dict[str, Any], key: str, length: int) -> list[Any]:
    """Return lists that each begin with another agent id and have `length` items."""
    rows = read_key(state, key, (list, tuple), _WHERE, default=())
    seen: set[AgentID] = set()
    for row in rows:
        if not isinstance(row, (list, tuple)) or len(row) != length or not _is_agent_id(row[0]) or row[0] in seen:
            raise StateError(
                f"{_WHERE}.{key}: expected lists of {length}, each beginning with another agent id (str or int), "
                f"got {row!r:.80}"
            )
        seen.add(row[0])
    return list(rows)


def _is_agent_id(value: Any) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def _checked_times(agent_id: AgentID, times: Any) -> list[int]:
    if not isinstance(times, (list, tuple)) or not all(type(env_t) is int and abs(env_t) < 2**62 for env_t in times):
        raise StateError(f"{_WHERE}.env_t_of_obs: agent {agent_id!r}: expected a list of ints, got {times!r:.80}")
    return list(times)


def _read_by_agent(state: dict[str, Any], name: str) -> dict[AgentID, Any]:
    found = _dict_of(read_key(state, name, (dict,), _WHERE, default={}), name)
    if wrong := [agent_id for agent_id in found if not _is_agent_id(agent_id)]:
        raise StateError(f"{_WHERE}.{name}: expected agent ids (str or int) as keys, got {wrong!r:.80}")
    return found


def _dict_of(plain: dict[str, Any], name: str) -> dict[Any, Any]:
    found = from_plain(plain, f"{_WHERE}.{name}")
    if not isinstance(found, dict):
        raise StateError(f"{_WHERE}.{name}: expected a dict, got {type(found).__name__}")
    return found


def _read_spaces(state: dict[str, Any], name: str) -> dict[AgentID, Space[Any]]:
    return {agent_id: space_from_dict(plain, f"{_WHERE}.{name}") for agent_id, plain in _read_pairs(state, name, 2)}


def _check_by_agent(by_agent: dict[str, dict[AgentID, Any]]) -> None:
    """Check what later steps rely on: types, and an action that hangs has its outputs and a reward."""
    acted = by_agent[_ACTIONS].keys()
    if by_agent[_OUTPUTS].keys() != acted or not acted <= by_agent[_REWARDS].keys():
        raise StateError(
            f"{_WHERE}: each of {_ACTIONS} ({list(acted)!r:.80}) needs one of {_OUTPUTS} and of {_REWARDS}"
        )
    number = ((int, float, np.generic, np.ndarray), "a number")
    expected: dict[str, tuple[tuple[type, ...], str]] = {_MODULES: ((str,), "str"), _OUTPUTS: ((dict,), "a dict")}
    for name, (types, what) in {**expected, _REWARDS: number, _REWARDS_BEFORE: number, _CARRIED: number}.items():
        for agent_id, value in by_agent[name].items():
            if not isinstance(value, types):
                got = f"{type(value).__name__} {value!r:.40}"
                raise StateError(f"{_WHERE}.{name}: agent {agent_id!r}: expected {what}, got {got}")


def _read_clock(state: dict[str, Any]) -> tuple[float | None, float | None]:
    """Start and last step on this process's clock, as far apart as they were on the writer's."""
    start = read_key(state, "_start_time", (int, float), _WHERE, default=None)
    last = read_key(state, "_last_step_time", (int, float), _WHERE, default=None)
    if start is None or last is None:
        return None, None
    now = time.perf_counter()
    return now - (last - start), now
