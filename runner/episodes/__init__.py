"""Trajectories: columns with a lookback, and episodes of one or several agents as views of them. Needs only numpy."""

from runner.episodes.lookback_buffer import InfoBuffer, LookbackBuffer
from runner.episodes.multi_agent_episode import MultiAgentEpisode
from runner.episodes.multi_agent_views import multi_agent_episodes
from runner.episodes.nested import StateError
from runner.episodes.single_agent_episode import SingleAgentEpisode
from runner.episodes.spaces import space_from_dict, space_to_dict

__all__ = [
    "InfoBuffer",
    "LookbackBuffer",
    "MultiAgentEpisode",
    "SingleAgentEpisode",
    "StateError",
    "multi_agent_episodes",
    "space_from_dict",
    "space_to_dict",
]
