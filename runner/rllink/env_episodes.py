"""Env episodes from simulators: their sampled rows and their ends.

An env episode is over when all its agents have ended and no further agent can join it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from runner.rllink.received_episodes import EnvEpisode, OpenEpisode, SampledChunks
from runner.rows.finished_episodes import EndedEpisode, FinishedEpisodes


@dataclass(eq=False)
class _SampledEnvEpisode:
    """The sampled part of an env episode.

    Attributes:
        agents: episodes of its agents, in the order of their first sampled chunks.
        going_on: `id()` of the agents' episodes that have not ended.
        num_counted: number of agents' episodes that are counted in metrics.
        num_steps: number of env steps.
        is_terminated: whether all agents that have ended are terminated.
        is_end_sampled: whether the end was sampled: the client has reported it, or has begun a newer env episode.
    """

    env: EnvEpisode
    agents: list[OpenEpisode] = field(default_factory=list)
    going_on: set[int] = field(default_factory=set)
    num_counted: int = 0
    num_steps: int = 0
    is_terminated: bool = True
    is_end_sampled: bool = False

    def add_chunk(self, episode: OpenEpisode, last_env_t: int, is_terminated: bool, is_truncated: bool) -> None:
        """Add a chunk that ends at this time step of the env episode."""
        if all(episode is not known for known in self.agents):
            self.agents.append(episode)
        self.num_steps = max(self.num_steps, last_env_t)
        self.is_terminated &= not is_truncated
        is_done = is_terminated or is_truncated
        self.is_end_sampled |= is_done and episode.ends_env
        (self.going_on.discard if is_done else self.going_on.add)(id(episode))

    @property
    def is_waiting(self) -> bool:
        """Return whether all agents have ended, including agents whose steps are not sampled yet."""
        return not self.going_on and len(self.agents) == len(self.env.agents)

    @property
    def end(self) -> EndedEpisode:
        return EndedEpisode(self.env.id, self.num_steps, self.is_terminated, task_of(self.agents))


@dataclass(frozen=True)
class NotedEnvEpisodes:
    """Changes of env episodes by the chunks of a sample.

    Attributes:
        counted: agents' episodes of each env episode that newly counts in metrics.
        over: complete env episodes that are over; with several agents only.
        waiting: env episodes that are over unless further agents join, for clients that do not report ends.
        aborted: ids of env episodes that have become incomplete.
    """

    counted: Sequence[Sequence[OpenEpisode]]
    over: Sequence[EndedEpisode] = ()
    waiting: Sequence[EndedEpisode] = ()
    aborted: Sequence[str] = ()


class SampledEnvEpisodes:
    """Follows env episodes from their first sampled chunk to their end.

    Args:
        module_of: agent id -> module id, with the key None for a single agent.
    """

    def __init__(self, module_of: Mapping[str | None, str]) -> None:
        self._module_of = module_of
        self._open: dict[str, _SampledEnvEpisode] = {}
        self._aborted: list[str] = []

    def note(self, sampled: Sequence[SampledChunks]) -> NotedEnvEpisodes:
        """Process the chunks of a sample."""
        if None in self._module_of:
            return NotedEnvEpisodes([[episode] for episode in _ended(sampled) if episode.is_complete])
        for chunks in sampled:
            self._add(chunks)
        self._end_older(sampled)
        for one in list(self._open.values()):
            if not one.env.is_complete:
                self._abort(one.env)
        over = [one for one in self._open.values() if self._is_over(one)]
        for one in over:
            del self._open[one.env.id]
        waiting = [one for one in self._open.values() if one.is_waiting and not one.env.says_end]
        countable = [*over, *waiting]
        whole = [one.agents[one.num_counted :] for one in countable if one.num_counted < len(one.agents)]
        for one in countable:
            one.num_counted = len(one.agents)
        aborted, self._aborted = self._aborted, []
        return NotedEnvEpisodes(whole, [one.end for one in over], [one.end for one in waiting], aborted)

    def _is_over(self, one: _SampledEnvEpisode) -> bool:
        # Keep this order: the server's thread may begin or lose an agent and then close the env episode.
        is_complete = one.env.is_closed or len(one.env.agents) == len(self._module_of)
        return is_complete and one.is_waiting and one.env.is_complete

    def _add(self, sampled: SampledChunks) -> None:
        block = sampled.block
        assert block.agents is not None
        last_obs = block.first_obs_rows + block.lengths
        flags = block.agents.env_t[last_obs].tolist(), block.is_terminated.tolist(), block.is_truncated.tolist()
        for episode, *end in zip(sampled.episodes, *flags, strict=True):
            env = episode.env
            assert env is not None
            if env.is_complete:
                self._open.setdefault(env.id, _SampledEnvEpisode(env)).add_chunk(episode, *end)
            else:
                self._abort(env)

    def _end_older(self, sampled: Sequence[SampledChunks]) -> None:
        """Mark env episodes as ended if a newer one with the same id was sampled."""
        newest: dict[tuple[str, str], int] = {}
        for env in (episode.env for chunks in sampled for episode in chunks.episodes):
            assert env is not None
            key = env.client, env.name
            newest[key] = max(env.number, newest.get(key, 0))
        for one in self._open.values():
            one.is_end_sampled |= newest.get((one.env.client, one.env.name), 0) > one.env.number

    def _abort(self, env: EnvEpisode) -> None:
        """Forget an incomplete env episode, whose agents may continue, and report it once."""
        self._open.pop(env.id, None)
        if not env.is_reported:
            env.is_reported = True
            self._aborted.append(env.id)

    def finished(self, whole: Sequence[Sequence[OpenEpisode]]) -> FinishedEpisodes:
        """Return the returns and lengths of env episodes; with several agents, also the returns of each agent."""
        finished = FinishedEpisodes(
            np.array([sum(episode.return_ for episode in group) for group in whole], np.float64),
            np.array([max(episode.num_steps_sampled for episode in group) for group in whole], np.int64),
            np.zeros(len(whole), np.int64),
        )
        if None in self._module_of:
            return finished
        episodes = [episode for group in whole for episode in group]
        by_agent = _returns_by([episode.agent_id or "" for episode in episodes], episodes)
        by_module = _returns_by([self._module_of[episode.agent_id] for episode in episodes], episodes)
        return replace(finished, by_agent=by_agent, by_module=by_module)

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self, served: Collection[EnvEpisode]) -> dict[str, Any]:
        """Return the sampled part of each env episode: ids of running agents' episodes, states of ended ones.

        Args:
            served: env episodes in which the server acts; they cannot continue after a restart.
        """
        return {
            id_: {
                "says_end": one.env.says_end,
                "number": one.env.number,
                "is_whole": one.env.is_complete and one.env not in served,
                "going_on": [episode.id for episode in one.agents if id(episode) in one.going_on],
                "ended": [episode.get_state() for episode in one.agents if id(episode) not in one.going_on],
                "num_counted": one.num_counted,
                "num_steps": one.num_steps,
                "is_terminated": one.is_terminated,
                "is_closed": one.is_end_sampled,
            }
            for id_, one in self._open.items()
        }

    def set_state(self, state: Mapping[str, Any], restored: Mapping[str, OpenEpisode]) -> list[EnvEpisode]:
        """Restore a state.

        Args:
            state: a state of `get_state`.
            restored: episodes that continue, by id; they get their env episodes.

        Returns:
            The env episodes that agents may join.
        """
        for id_, saved in state.items():
            going_on = [restored[id_of] for id_of in saved["going_on"] if id_of in restored]
            ended = [OpenEpisode.from_state(episode) for episode in saved["ended"]]
            is_complete = saved["is_whole"] and len(going_on) == len(saved["going_on"])
            agents = [*ended, *going_on]
            if not agents:
                self._aborted.append(id_)
                continue
            begun, is_closed = {str(one.agent_id) for one in agents}, saved["is_closed"]
            who = agents[0].client, str(agents[0].name), saved["says_end"]
            env = EnvEpisode(id_, *who, saved["number"], begun, is_complete, is_closed)
            for episode in agents:
                episode.env = env
            if not is_complete:
                self._abort(env)
                continue
            counts = saved["num_counted"], saved["num_steps"], saved["is_terminated"]
            self._open[id_] = _SampledEnvEpisode(env, agents, set(map(id, going_on)), *counts, is_closed)
        return [one.env for one in self._open.values() if not one.env.is_closed]


def _ended(sampled: Sequence[SampledChunks]) -> Iterator[OpenEpisode]:
    for one in sampled:
        is_done = one.block.is_terminated | one.block.is_truncated
        yield from (episode for episode, done in zip(one.episodes, is_done.tolist(), strict=True) if done)


def returns_of(whole: Sequence[Sequence[OpenEpisode]]) -> dict[str, float]:
    """Return id -> return of env episodes."""
    return {group[0].env_id or group[0].id: sum(episode.return_ for episode in group) for group in whole}


def _returns_by(names: Sequence[str], episodes: Sequence[OpenEpisode]) -> dict[str, Any]:
    """Return name -> returns of the episodes with this name."""
    returns: dict[str, list[float]] = {}
    for name, episode in zip(names, episodes, strict=True):
        returns.setdefault(name, []).append(episode.return_)
    return {name: np.array(values) for name, values in returns.items()}


def task_of(agents: Sequence[OpenEpisode]) -> str | None:
    """Return the task of an env episode: the first task of an agent."""
    return next((episode.task for episode in agents if episode.task is not None), None)
