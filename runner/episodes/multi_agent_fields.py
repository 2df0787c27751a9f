"""What a multi-agent episode is made of, and what can be read off it at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from runner.episodes.agent_track import ALL, AgentID, AgentTrack
from runner.episodes.lookback_buffer import LookbackBuffer
from runner.episodes.single_agent_episode import SingleAgentEpisode

if TYPE_CHECKING:
    from gymnasium import Space

DEFAULT_MODULE_ID = "default_policy"


def map_to_default_module(agent_id: AgentID, episode: Any) -> str:
    """Let one module play all agents."""
    return DEFAULT_MODULE_ID


class MultiAgentFields:
    """The fields of a `MultiAgentEpisode`, see there, and what follows from them."""

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

    id_: str
    agent_episodes: dict[AgentID, SingleAgentEpisode]
    env_t: int
    env_t_started: int
    is_terminated: bool
    is_truncated: bool
    observation_space: dict[AgentID, Space[Any]]
    action_space: dict[AgentID, Space[Any]]
    agent_to_module_mapping_fn: Callable[[AgentID, Any], str]
    _agent_to_module_mapping: dict[AgentID, str]
    _len_lookback_buffer: int
    _tracks: dict[AgentID, AgentTrack]  # around the very episodes of `agent_episodes`
    _hanging_rewards_begin: dict[AgentID, Any]  # given before an agent's first observation; no step ever takes them
    _ended_agents: dict[AgentID, tuple[bool, bool]]  # terminated, truncated: agents that ended before this chunk
    _is_reset: bool
    _start_time: float | None
    _last_step_time: float | None
    _custom_data: dict[Any, Any] | None

    def _init_fields(self, id_: str, env_t_started: int, env_t: int, lookback: int) -> None:
        self.id_ = id_
        self.env_t_started, self.env_t, self._len_lookback_buffer = env_t_started, env_t, lookback
        self.agent_episodes, self._tracks, self._ended_agents, self._hanging_rewards_begin = {}, {}, {}, {}
        self.observation_space, self.action_space = {}, {}
        self.agent_to_module_mapping_fn, self._agent_to_module_mapping = map_to_default_module, {}
        self.is_terminated = self.is_truncated = self._is_reset = False
        self._custom_data = None
        self._start_time = self._last_step_time = None

    def _put(self, agent_id: AgentID, track: AgentTrack) -> None:
        self._tracks[agent_id], self.agent_episodes[agent_id] = track, track.episode

    # --- lengths, returns, agents ------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the env steps of this chunk, without its lookback."""
        return self.env_t - self.env_t_started

    def module_for(self, agent_id: AgentID) -> str:
        """Return the module that plays the agent; asks `agent_to_module_mapping_fn` once for each agent of an
        episode."""
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
        """Return the agents with an observation at the newest env step, also if they ended there."""
        return {agent_id for agent_id, track in self._tracks.items() if track.env_t[-1] == self.env_t}

    def get_agents_to_act(self) -> set[AgentID]:
        """Return the agents that the next env step needs an action of: observed at the newest one, and not ended."""
        return {a for a in self.get_agents_that_stepped() if not self.agent_episodes[a].is_done}

    def get_return(self, include_hanging_rewards: bool = False) -> float:
        """Return the sum of all agents' rewards (float64, undiscounted) in their complete steps of this chunk.

        With `include_hanging_rewards`: exactly the rewards that were given in this chunk's env steps, so that the
        sum over the chunks of an episode has each of them once.
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
        """Complete steps of all agents in this chunk."""
        return sum(len(episode) for episode in self.agent_episodes.values())

    @property
    def agent_ids(self) -> set[AgentID]:
        """The agents of this chunk."""
        return set(self.agent_episodes)

    @property
    def agent_episode_ids(self) -> dict[AgentID, str]:
        """The ids of the agents' own episodes."""
        return {agent_id: episode.id_ for agent_id, episode in self.agent_episodes.items()}

    @property
    def agent_t_started(self) -> dict[AgentID, int]:
        """Each agent's own time step at its first observation of this chunk."""
        return {agent_id: episode.t_started for agent_id, episode in self.agent_episodes.items()}

    @property
    def env_t_to_agent_t(self) -> dict[AgentID, LookbackBuffer]:
        """For each agent, its own time step at each env step (H of lookback, then 0 to T), "S" where it has none.

        Made anew at each access.
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
        """A dict for whatever callbacks and pieces want to remember; chunks and slices get a shallow copy."""
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
        """Whether the episode is terminated or truncated, as a whole."""
        return self.is_terminated or self.is_truncated

    def __repr__(self) -> str:
        done = "terminated" if self.is_terminated else "truncated" if self.is_truncated else "ongoing"
        span, agents = f"{self.env_t_started}..{self.env_t}", list(self.agent_episodes)
        return f"MultiAgentEpisode(id_={self.id_!r}, len={len(self)}, env_t={span}, agents={agents!r:.120}, {done})"

    def print(self) -> None:
        """Print a line of env steps, and for each agent one with an x where it was observed."""
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

    # --- checks and copies -------------------------------------------------------------------------

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
            problem = track.problem(range(self.env_t_started, self.env_t))
            if problem is None and agent_id in self._ended_agents:
                problem = "it ended before env_t_started"
            if problem is not None:
                raise ValueError(f"episode {self.id_}: agent {agent_id!r}: {problem}")
