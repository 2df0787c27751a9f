"""The agents that run in the sub-environments of an env runner, and their data in each vector step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.config.errors import Problem, RunFailure, nearest_match
from runner.env_runners.env_answers import reward_of
from runner.env_runners.multi_agent_env import ALL_AGENTS
from runner.env_runners.multi_agent_envs import EnvStep, MultiAgentEnvironments


@dataclass(frozen=True)
class FinishedEpisode:
    """An env episode with several agents that has ended, for metrics; `FinishedEpisodes` summarises them.

    Attributes:
        env: number of its sub-environment.
        length: number of env steps.
        returns: agent id -> its return.
        number: number of the episode in its sub-environment, from 0.
        is_terminated: whether the environment or each of its agents has terminated it; otherwise it is truncated.
    """

    env: int
    length: int
    returns: Mapping[str, float]
    number: int = 0
    is_terminated: bool = False


class Observed:
    """Data of the agents of one module, from all sub-environments in one vector step."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, Any]] = []  # slot, first observation
        self.seen: list[tuple[int, Any]] = []  # slot, observation
        self.rewards: list[tuple[int, float]] = []
        self.ended_unseen: list[int] = []
        self.ends: list[tuple[int, bool, bool]] = []  # slot, terminated, truncated
        self.infos: list[tuple[int, Mapping[str, Any]]] = []


class RunningAgents:
    """The running episodes of N sub-environments and of the agents in them.

    Args:
        env: the sub-environments.
        agents: module id -> its agents.
    """

    def __init__(self, env: MultiAgentEnvironments, agents: Mapping[str, Sequence[str]]) -> None:
        self._env = env
        self._module_ids = list(agents)
        self._place_of = {  # agent id -> its module, its index among the module's agents, and their number
            agent: (module_id, place, len(of_module))
            for module_id, of_module in agents.items()
            for place, agent in enumerate(of_module)
        }
        self._returns: list[dict[str, float]] = [{} for _ in range(env.num_envs)]
        self._running: list[set[str]] = [set() for _ in range(env.num_envs)]
        self._has_ended: list[set[str]] = [set() for _ in range(env.num_envs)]
        self._truncated = [0] * env.num_envs  # agents that ended without being terminated
        self._finished: list[FinishedEpisode | None] = [None] * env.num_envs  # newest env episodes that have ended

    def episode_return(self, n: int) -> float:
        """Return the sum of the returns so far of all agents of a sub-environment's episode."""
        return sum(self._returns[n].values())

    def ends_now(self, n: int) -> tuple[bool, bool]:
        """Return whether a sub-environment's newest env episode has terminated, and whether it was truncated."""
        finished = self._finished[n]
        return (False, False) if finished is None else (finished.is_terminated, not finished.is_terminated)

    def observed_in(self, n: int) -> Iterator[tuple[str, str, int]]:
        """Yield the agents observed in a sub-environment's episode: agent, its module, and its slot there."""
        for agent in sorted(self._running[n] | self._has_ended[n]):
            module_id, place, num_agents = self._place_of[agent]
            yield agent, module_id, n * num_agents + place

    def module_of(self, agent: str) -> str:
        """Return the id of the module that acts for an agent."""
        return self._place_of[agent][0]

    def update(self, steps: Sequence[EnvStep]) -> tuple[dict[str, Observed], list[FinishedEpisode]]:
        """Follow a vector step; return its data by module id, and the env episodes that ended.

        Raises:
            RunFailure: a sub-environment returns unknown agents, continues after an agent's end, or returns a reward
                that is not a number.
        """
        observed = {module_id: Observed() for module_id in self._module_ids}
        ended = [self._update_env(n, step, observed) for n, step in enumerate(steps)]
        return observed, [episode for episode in ended if episode is not None]

    def _update_env(self, n: int, step: EnvStep, observed: Mapping[str, Observed]) -> FinishedEpisode | None:
        """Add each agent's data to its module; return the env episode if it has ended."""
        if step.is_reset:
            self._returns[n] = {}
            self._running[n], self._has_ended[n], self._truncated[n] = set(), set(), 0
            self._finished[n] = None
        returns = self._returns[n]
        for agent, reward in step.rewards.items():
            module_id, slot = self._slot(agent, n, "rewards")
            number = reward if type(reward) is float else reward_of(reward, f"{self._env.place(n)}, agent {agent}")
            returns[agent] = returns.get(agent, 0.0) + number
            observed[module_id].rewards.append((slot, number))
        for agent, obs in step.obs.items():
            module_id, slot = self._slot(agent, n, "observations")
            data = observed[module_id]
            if agent in self._running[n]:
                data.seen.append((slot, obs))
            elif agent in self._has_ended[n]:
                raise self._failure(f"agent {agent} is observed after its episode has ended", n)
            else:
                self._running[n].add(agent)
                returns.setdefault(agent, 0.0)
                data.begun.append((slot, obs))
            if step.infos.get(agent):
                data.infos.append((slot, step.infos[agent]))
        if any(step.terminateds.values()) or any(step.truncateds.values()):
            return self._end_agents(n, step, observed)
        return None

    def _end_agents(self, n: int, step: EnvStep, observed: Mapping[str, Observed]) -> FinishedEpisode | None:
        """End the episodes of agents in this step, and the env episode with its last agent."""
        all_terminated, all_truncated = (bool(ends.get(ALL_AGENTS)) for ends in (step.terminateds, step.truncateds))
        for data_name, ends in (("terminateds", step.terminateds), ("truncateds", step.truncateds)):
            for agent in ends:
                if agent != ALL_AGENTS:
                    self._slot(agent, n, data_name)
        for agent in sorted(self._running[n]):
            flags = bool(step.terminateds.get(agent)), bool(step.truncateds.get(agent))
            is_terminated, is_truncated = flags if any(flags) else (all_terminated, all_truncated)
            if not (is_terminated or is_truncated):
                continue
            module_id, slot = self._slot(agent, n, "terminateds")
            data = observed[module_id]
            if agent not in step.obs:
                if not is_terminated:
                    what = f"agent {agent} is truncated without a final observation, so its value cannot be estimated"
                    raise self._failure(what, n)
                data.ended_unseen.append(slot)
                if step.infos.get(agent):
                    data.infos.append((slot, step.infos[agent]))
            data.ends.append((slot, is_terminated, is_truncated))
            self._running[n].discard(agent)
            self._has_ended[n].add(agent)
            self._truncated[n] += not is_terminated
        is_open = ALL_AGENTS in step.terminateds or ALL_AGENTS in step.truncateds
        if all_terminated or all_truncated or not (self._running[n] or is_open):
            self._env.end_episode(n)
            is_terminated = all_terminated or (not all_truncated and self._truncated[n] == 0)
            length, number = self._env.num_steps[n], self._env.episode_numbers[n]
            finished = FinishedEpisode(n, length, self._returns[n], number, is_terminated)
            self._finished[n] = finished
            return finished
        return None

    def _slot(self, agent: str, n: int, data: str) -> tuple[str, int]:
        """Return the module of an agent, and its slot among the module's rows."""
        try:
            module_id, place, num_agents = self._place_of[agent]
        except KeyError:
            what = f"the environment's {data} contain an agent that is not in its possible_agents"
            raise self._failure(what, n, str(agent), list(self._place_of)) from None
        return module_id, n * num_agents + place

    def _failure(self, what: str, n: int, got: str | None = None, known: Sequence[str] = ()) -> RunFailure:
        nearest = nearest_match(got, list(known)) if got else None
        return RunFailure(Problem(what, self._env.place(n), got, ", ".join(known) or None, nearest))

    def get_state(self) -> dict[str, Any]:
        """Return the state of the running episodes."""
        return {
            "env_t": list(self._env.num_steps),  # also in the environments' state, from where they are restored
            "numbers": list(self._env.episode_numbers),
            "own_returns": [dict(returns) for returns in self._returns],
            "running": [sorted(agents) for agents in self._running],
            "has_ended": [sorted(agents) for agents in self._has_ended],
            "truncated": list(self._truncated),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        self._returns = [dict(returns) for returns in state["own_returns"]]
        self._running = [set(agents) for agents in state["running"]]
        self._has_ended = [set(agents) for agents in state["has_ended"]]
        self._truncated = [int(number) for number in state["truncated"]]
        self._finished = [None] * self._env.num_envs
