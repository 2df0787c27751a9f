"""One agent's part of a multi-agent episode."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from runner.episodes.single_agent_episode import SingleAgentEpisode

AgentID = str | int
Begun = tuple[Any, dict[str, Any]]  # action and extra model outputs of a step
ALL = "__all__"  # key of the flags of the episode

Slice = slice  # the class has a method of this name


@dataclass(slots=True)
class AgentTrack:
    """One agent in an env episode: its episode, the env step of each observation, and the step that hangs.

    Attributes:
        episode: the agent's complete steps.
        env_t: env step of each observation, lookback included; ascending.
        begun: action and extra model outputs of a step that ends after the slice, or None.
        reward: reward of this step, or None.
    """

    episode: SingleAgentEpisode
    env_t: list[int]
    begun: Begun | None = None
    reward: Any = None

    @property
    def lookback(self) -> int:
        """The number of the agent's steps before this chunk."""
        return self.episode.observations.lookback

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
        return None
