"""Trajectories: columns with a lookback, and episodes of one or several agents as views of them. Needs only numpy."""

from runner.episodes.lookback_buffer import LookbackBuffer
from runner.episodes.multi_agent_episode import MultiAgentEpisode
from runner.episodes.multi_agent_views import multi_agent_episodes
from runner.episodes.single_agent_episode import SingleAgentEpisode

__all__ = [
    "LookbackBuffer",
    "MultiAgentEpisode",
    "SingleAgentEpisode",
    "multi_agent_episodes",
]
