"""Multi-agent episodes from what happened in each env step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.episodes import MultiAgentEpisode, SingleAgentEpisode

ALL = "__all__"
Step = Mapping[str, Mapping[Any, Any]]


@dataclass
class _Agent:
    episode: SingleAgentEpisode
    env_t: list[int] = field(default_factory=list)
    begun: tuple[Any, dict[str, Any]] | None = None
    reward: Any = 0
    lookback: int = 0


def episode_of(
    steps: Sequence[Step],
    *,
    id_: str | None = "e",
    num_lookback: int = 0,
    offset: int = 0,
    spaces: Mapping[Any, Any] | None = None,
) -> MultiAgentEpisode:
    """Make an episode of the agents' complete steps.

    Args:
        steps: name (`observations`, `actions`, `rewards`, `infos`, `extra`, `terminateds`, `truncateds`) -> agent ->
            value, for each env step; the first one is the reset.
        id_: id of the episode.
        num_lookback: env steps of lookback.
        offset: env step of the reset.
        spaces: agent -> space of its observations and actions.
    """
    agents: dict[Any, _Agent] = {}
    ends: dict[Any, tuple[bool, bool]] = {}
    for t, step in enumerate(steps):
        for agent in dict.fromkeys((*agents, *step.get("observations", {}))):
            if agent not in ends:
                _add(agents, agent, step, offset + t, id_, (spaces or {}).get(agent))
        ends |= {agent: flags for agent in agents.keys() - ends.keys() if any(flags := _flags(step, agent))}
        if t == num_lookback:
            for one in agents.values():
                one.lookback = len(one.episode)
    for one in agents.values():
        _look_back(one)
    have_ended, last = bool(agents) and agents.keys() == ends.keys(), steps[-1]
    have_terminated = have_ended and all(is_terminated for is_terminated, _ in ends.values())
    return MultiAgentEpisode(
        id_,
        agent_episodes={agent: one.episode for agent, one in agents.items()},
        env_t_of_obs={agent: one.env_t for agent, one in agents.items()},
        env_t_started=offset + num_lookback,
        env_t=offset + len(steps) - 1,
        is_terminated=bool(last.get("terminateds", {}).get(ALL)) or have_terminated,
        is_truncated=bool(last.get("truncateds", {}).get(ALL)) or (have_ended and not have_terminated),
        len_lookback_buffer=num_lookback,
    )


def _flags(step: Step, agent: Any) -> tuple[bool, bool]:
    terminateds, truncateds = step.get("terminateds", {}), step.get("truncateds", {})
    own = bool(terminateds.get(agent)), bool(truncateds.get(agent))
    return own if any(own) else (bool(terminateds.get(ALL)), bool(truncateds.get(ALL)))


def _add(agents: dict[Any, _Agent], agent: Any, step: Step, env_t: int, id_: str | None, space: Any) -> None:
    observations, infos = step.get("observations", {}), step.get("infos", {})
    if agent not in agents:
        episode = SingleAgentEpisode(
            agent_id=agent,
            module_id=f"module_{agent}",
            multi_agent_episode_id=id_,
            observation_space=space,
            action_space=space,
        )
        episode.add_env_reset(observations[agent], infos.get(agent))
        agents[agent] = _Agent(episode, [env_t])
        episode.is_terminated, episode.is_truncated = _flags(step, agent)
        return
    one, (is_terminated, is_truncated) = agents[agent], _flags(step, agent)
    one.reward += step.get("rewards", {}).get(agent, 0)
    if agent in step.get("actions", {}):
        one.begun = step["actions"][agent], step.get("extra", {}).get(agent, {})
    if one.begun is not None and (agent in observations or is_terminated):
        observation = observations[agent] if agent in observations else one.episode.get_observations(-1)
        one.episode.add_env_step(
            observation,
            one.begun[0],
            one.reward,
            infos.get(agent),
            terminated=is_terminated,
            truncated=is_truncated,
            extra_model_outputs=one.begun[1],
        )
        one.env_t.append(env_t)
        one.begun, one.reward = None, 0
    else:
        one.episode.is_terminated, one.episode.is_truncated = is_terminated, is_truncated


def _look_back(one: _Agent) -> None:
    """Turn the first steps of an agent into lookback."""
    episode = one.episode
    fields = (episode.observations, episode.infos, episode.actions, episode.rewards)
    for buffer in (*fields, *episode.extra_model_outputs.values()):
        buffer.lookback = one.lookback
    episode.t_started += one.lookback
