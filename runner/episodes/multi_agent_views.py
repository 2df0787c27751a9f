"""The experiences of several agents in a rollout, as multi-agent episodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from runner.episodes.agent_track import AgentID
from runner.episodes.columns import ColumnBlock, Rollout
from runner.episodes.multi_agent_episode import MultiAgentEpisode
from runner.episodes.single_agent_episode import SingleAgentEpisode

# Agent -> its chunk, and the env step of each of its observations.
AgentChunks = dict[AgentID, tuple[SingleAgentEpisode, npt.NDArray[np.int64]]]


def multi_agent_episodes(rollout: Rollout) -> list[MultiAgentEpisode]:
    """Return the env episodes of a rollout of several agents, as views of its agents' rows.

    An episode has the agents that completed a step in the rollout, without lookback. It starts at the earliest
    observation of one of them and is terminated or truncated if all of them have ended. A step that still waits for
    its observation is in the rollout in which it is completed.

    Raises:
        ValueError: a block does not name the agents of its rows; with a single agent use `rollout.blocks[...]` itself.
    """
    by_episode: dict[str, AgentChunks] = {}
    for module_id, block in rollout.blocks.items():
        if block.agents is None:
            raise ValueError(f"the block of module {module_id!r} has a single agent; iterate over it for its episodes")
        _add_chunks(block, by_episode)
    return [_with_ends_of_agents(id_, agents) for id_, agents in by_episode.items()]


def _add_chunks(block: ColumnBlock, by_episode: dict[str, AgentChunks]) -> None:
    assert block.agents is not None
    ends = block.first_obs_rows + block.lengths + 1
    env_t = np.split(block.agents.env_t, ends[:-1])
    chunks = zip(block.agents.multi_agent_episode_ids, block.agents.agent_ids, env_t, strict=True)
    for (id_, agent, times), episode in zip(chunks, replace(block, lookback=None), strict=True):
        agents = by_episode.setdefault(id_, {})
        if agent in agents:  # the rollout has several fragments of this episode
            earlier, earlier_times = agents[agent]
            earlier.concat_episode(episode)
            agents[agent] = earlier, np.concatenate((earlier_times[:-1], times))
        else:
            agents[agent] = episode, times


def _with_ends_of_agents(id_: str, agents: AgentChunks) -> MultiAgentEpisode:
    is_terminated = all(episode.is_terminated for episode, _ in agents.values())
    have_ended = all(episode.is_done for episode, _ in agents.values())
    return episode_around(id_, agents, is_terminated, have_ended and not is_terminated)


def episode_around(id_: str, agents: AgentChunks, is_terminated: bool, is_truncated: bool) -> MultiAgentEpisode:
    """Return the env episode around chunks of its agents, with these flags for the episode."""
    episodes = {agent: episode for agent, (episode, _) in agents.items()}
    times = {agent: env_t for agent, (_, env_t) in agents.items()}
    begun = (int(env_t[episodes[agent].observations.lookback]) for agent, env_t in times.items())
    env_t_started, earliest = min(begun, default=0), min((int(env_t[0]) for env_t in times.values()), default=0)
    return MultiAgentEpisode(
        id_,
        agent_episodes=episodes,
        env_t_of_obs=times,
        env_t_started=env_t_started,
        env_t=int(max((env_t[-1] for env_t in times.values()), default=0)),
        is_terminated=is_terminated,
        is_truncated=is_truncated,
        len_lookback_buffer=env_t_started - earliest,
    )
