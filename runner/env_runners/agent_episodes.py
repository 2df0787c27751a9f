"""Running env episodes of several agents, as views of the rows of their modules."""

from __future__ import annotations

from collections.abc import Mapping

from runner.env_runners.multi_agent_envs import MultiAgentEnvironments
from runner.env_runners.running_agents import RunningAgents
from runner.episodes import MultiAgentEpisode
from runner.episodes.multi_agent_views import AgentChunks, episode_around
from runner.rows.agent_rows import AgentRows, env_episode_id


class AgentEpisodes:
    """The newest env episode of each of N sub-environments, including episodes that have just ended.

    A view has the agents with rows since the last fragment was cut, with the lookback before it. A step that waits for
    its observation is added once it is complete.

    Args:
        env: the sub-environments.
        agents: the agents that run in them.
        rows: module id -> the rows of its agents.
        id_prefix: beginning of the ids of env episodes.
    """

    def __init__(
        self, env: MultiAgentEnvironments, agents: RunningAgents, rows: Mapping[str, AgentRows], id_prefix: str
    ) -> None:
        self._env, self._agents, self._rows, self._id_prefix = env, agents, rows, id_prefix

    def __getitem__(self, n: int) -> MultiAgentEpisode:
        number = self._env.episode_numbers[n]
        chunks: AgentChunks = {}
        for agent, module_id, slot in self._agents.observed_in(n):
            rows = self._rows[module_id]
            if rows.holds(slot, number):
                chunks[agent] = rows.running_episode(slot), rows.observed_at(slot)
        return episode_around(env_episode_id(self._id_prefix, n, number), chunks, *self._agents.ends_now(n))

    def episode_return(self, n: int) -> float:
        """Return the sum of all agents' undiscounted returns so far."""
        return self._agents.episode_return(n)
