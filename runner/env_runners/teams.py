"""Teams of agents: their members, and shared rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from runner.config.errors import ConfigError, Problem, nearest_match
from runner.env_runners.env_answers import reward_of
from runner.env_runners.multi_agent_env import ALL_AGENTS, AgentDict, MultiAgentEnv, MultiAgentWrapper, StepDicts

_WHERE = "multi_agent.teams"


def agents_of_teams(teams: Mapping[str, Sequence[str]], agents: Sequence[str]) -> dict[str, list[str]]:
    """Return team -> its agents, in the order of `agents`.

    Args:
        teams: team -> ids or patterns (`*`, `?`, `[abc]`).
        agents: agents of the environment.

    Raises:
        ConfigError: a pattern does not match any agent, or an agent is in two teams.
    """
    found: dict[str, list[str]] = {}
    for team, patterns in teams.items():
        for pattern in patterns:
            if not any(fnmatchcase(agent, pattern) for agent in agents):
                what, nearest = f"team {team} contains an unknown agent", nearest_match(pattern, list(agents))
                raise ConfigError([Problem(what, f"{_WHERE}.{team}", pattern, ", ".join(agents), nearest)])
        found[team] = [agent for agent in agents if any(fnmatchcase(agent, pattern) for pattern in patterns)]
    for agent in agents:
        names = [team for team, members in found.items() if agent in members]
        if len(names) > 1:
            raise ConfigError([Problem(f"agent {agent} is in several teams", _WHERE, ", ".join(names), "one team")])
    return found


class SharedRewards(MultiAgentWrapper):
    """Gives each agent, in each env step, the mean of the rewards of its team's running agents.

    The sum of all rewards does not change. Members that have not joined yet, or have finished, do not get a share.

    Args:
        env: the environment.
        teams: team -> ids or patterns of its agents; agents without a team keep their rewards.

    Raises:
        ConfigError: see `agents_of_teams`.
    """

    def __init__(self, env: MultiAgentEnv, teams: Mapping[str, Sequence[str]]) -> None:
        super().__init__(env)
        self._teams = agents_of_teams(teams, list(env.possible_agents))
        self._running: set[str] = set()
        self._ended: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        of_env = super().__getattr__(name)  # raises `AttributeError` if the environment lacks it
        return {"get_state": self._get_state, "set_state": self._set_state}.get(name, of_env)

    def _get_state(self) -> dict[str, Any]:
        env: Any = self._env
        return {"env": env.get_state(), "running": sorted(self._running), "ended": sorted(self._ended)}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        env: Any = self._env
        env.set_state(state["env"])
        self._running, self._ended = set(state["running"]), set(state["ended"])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        """Start an episode."""
        obs, infos = self._env.reset(seed=seed, options=options)
        self._running, self._ended = set(obs), set()
        return obs, infos

    def step(self, actions: AgentDict) -> StepDicts:
        """Take one env step, and share the rewards."""
        obs, rewards, terminateds, truncateds, infos = self._env.step(actions)
        self._running |= obs.keys() - self._ended
        shared = dict(rewards)
        for members in self._teams.values():
            given = [
                reward if type(reward) is float else reward_of(reward, f"agent {agent}")
                for agent in members
                if agent in rewards
                for reward in (rewards[agent],)
            ]
            sharers = [agent for agent in members if agent in self._running]
            if given and sharers:
                others = {agent: reward for agent, reward in shared.items() if agent not in members}
                shared = others | dict.fromkeys(sharers, sum(given) / len(sharers))
        self._ended |= {agent for ends in (terminateds, truncateds) for agent, is_end in ends.items() if is_end}
        self._running -= self._ended - {ALL_AGENTS}
        return obs, shared, terminateds, truncateds, infos


def sharing_rewards(env: MultiAgentEnv, teams: Mapping[str, Sequence[str]]) -> MultiAgentEnv:
    """Return the environment, with shared rewards if there are teams; raises the errors of `SharedRewards`."""
    return SharedRewards(env, teams) if teams else env
