"""What a multi-agent episode is made of, and what can be read off it at once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from runner.episodes.lookback_buffer import LookbackBuffer
from runner.episodes.single_agent_episode import SingleAgentEpisode

if TYPE_CHECKING:
    from gymnasium import Space

AgentID = str | int
ALL = "__all__"  # the key of terminateds and truncateds that stands for every agent
DEFAULT_MODULE_ID = "default_policy"


def map_to_default_module(agent_id: AgentID, episode: Any) -> str:
    """Let one module play all agents."""
    return DEFAULT_MODULE_ID


class MultiAgentFields:
    """The fields of a `MultiAgentEpisode`, see there, and what follows from them."""

    SKIP_ENV_TS_TAG = "S"

    __slots__ = (
        "_agent_to_module_mapping",
        "_carried_rewards",
        "_custom_data",
        "_ended_agents",
        "_hanging_actions_end",
        "_hanging_extra_model_outputs_end",
        "_hanging_rewards_begin",
        "_hanging_rewards_end",
        "_is_reset",
        "_last_step_time",
        "_len_lookback_buffer",
        "_obs_env_t",
        "_start_time",
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
    _obs_env_t: dict[AgentID, list[int]]  # env step of each row of the agent's observations, lookback included
    _hanging_actions_end: dict[AgentID, Any]
    _hanging_extra_model_outputs_end: dict[AgentID, dict[str, Any]]
    _hanging_rewards_end: dict[AgentID, Any]  # of agents that have been observed
    _hanging_rewards_begin: dict[AgentID, Any]  # given before an agent's first observation; no step ever takes them
    _carried_rewards: dict[AgentID, Any]  # part of the hanging rewards that the chunk before has already counted
    _ended_agents: dict[AgentID, tuple[bool, bool]]  # terminated, truncated: agents that ended before this chunk
    _is_reset: bool
    _start_time: float | None
    _last_step_time: float | None
    _custom_data: dict[Any, Any] | None

    def _init_fields(self, id_: str, env_t_started: int, env_t: int, lookback: int) -> None:
        self.id_ = id_
        self.env_t_started, self.env_t, self._len_lookback_buffer = env_t_started, env_t, lookback
        self.agent_episodes, self._obs_env_t, self._ended_agents = {}, {}, {}
        self._hanging_actions_end, self._hanging_extra_model_outputs_end = {}, {}
        self._hanging_rewards_end, self._hanging_rewards_begin, self._carried_rewards = {}, {}, {}
        self.observation_space, self.action_space = {}, {}
        self.agent_to_module_mapping_fn, self._agent_to_module_mapping = map_to_default_module, {}
        self.is_terminated = self.is_truncated = self._is_reset = False
        self._custom_data = None
        self._start_time = self._last_step_time = None

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
        return {agent_id for agent_id, times in self._obs_env_t.items() if times[-1] == self.env_t}

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
        hanging = [*self._hanging_rewards_begin.values(), *self._hanging_rewards_end.values()]
        return float(total + sum(hanging) - sum(self._carried_rewards.values()))

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
        for agent_id, times in self._obs_env_t.items():
            episode = self.agent_episodes[agent_id]
            agent_t: list[Any] = [self.SKIP_ENV_TS_TAG] * (self.env_t - first + 1)
            for t, env_t in enumerate(times, episode.t_started - episode.observations.lookback):
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
        for agent_id, times in self._obs_env_t.items():
            known = set(times)
            marks = ["x" if first + column in known else "." for column in range(len(heads))]
            cells = [mark.rjust(len(head)) for mark, head in zip(marks, heads, strict=True)]
            lines.append("  ".join([str(agent_id).ljust(width), *cells]))
        print("\n".join(lines))

    # --- checks and copies -------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise `ValueError` naming the agent whose data or env steps do not fit."""
        if self.env_t < self.env_t_started:
            raise ValueError(f"episode {self.id_}: env_t is {self.env_t}, before env_t_started={self.env_t_started}")
        if self.agent_episodes.keys() != self._obs_env_t.keys():
            raise ValueError(
                f"episode {self.id_}: env steps are known of the agents {list(self._obs_env_t)}, "
                f"expected {list(self.agent_episodes)}"
            )
        for agent_id, episode in self.agent_episodes.items():
            problem = self._problem_with_agent(agent_id, episode)
            if problem is not None:
                raise ValueError(f"episode {self.id_}: agent {agent_id!r}: {problem}")
        for hanging in (self._hanging_actions_end, self._hanging_rewards_end, self._carried_rewards):
            if unknown := [agent_id for agent_id in hanging if agent_id not in self.agent_episodes]:
                raise ValueError(f"episode {self.id_}: actions or rewards hang of agents that are not in it: {unknown}")

    def _problem_with_agent(self, agent_id: AgentID, episode: SingleAgentEpisode) -> str | None:
        try:
            episode.validate()
        except ValueError as error:
            return str(error)
        times, lookback = self._obs_env_t[agent_id], episode.observations.lookback
        if len(times) != episode.observations.len_incl_lookback() or not times:
            return f"{episode.observations.len_incl_lookback()} observations, but {len(times)} env steps of them"
        if any(a >= b for a, b in pairwise(times)) or times[-1] > self.env_t:
            return f"env steps of observations must ascend to at most env_t={self.env_t}, got {times!r:.80}"
        if lookback and times[lookback - 1] >= self.env_t_started:
            return f"a lookback observation is at env step {times[lookback - 1]}, env_t_started is {self.env_t_started}"
        if len(times) > lookback + 1 and times[lookback + 1] <= self.env_t_started:
            return f"two observations up to env_t_started={self.env_t_started} are not lookback"
        if agent_id in self._hanging_actions_end and episode.is_done:
            return "an action hangs, but it has ended"
        if agent_id in self._ended_agents:
            return "it ended before env_t_started"
        return None

    def _copy_hanging(self, agent_id: AgentID, other: MultiAgentFields) -> None:
        """Replace what hangs of an agent by what hangs of it in `other`."""
        for name in ("_hanging_actions_end", "_hanging_extra_model_outputs_end", "_hanging_rewards_end"):
            mine, theirs = getattr(self, name), getattr(other, name)
            mine.pop(agent_id, None)
            if agent_id in theirs:
                mine[agent_id] = theirs[agent_id]
