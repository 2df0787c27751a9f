"""An environment for leagues in which agents come and go at random, and which checks who acts."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from runner.env_runners.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts

AGENTS = ("a", "b", "c")


class Arena(MultiAgentEnv):
    """Agents join, wait, act and leave at random; whoever was observed last has to act, and nobody else.

    Args:
        has_all_key: whether the end of the episode is told by `__all__`, too.
    """

    possible_agents = AGENTS

    def __init__(self, has_all_key: bool = True) -> None:
        self.observation_spaces = dict.fromkeys(AGENTS, gym.spaces.Box(-1e9, 1e9, (2,), np.float32))
        self.action_spaces = dict.fromkeys(AGENTS, gym.spaces.Discrete(5))
        self._has_all_key = has_all_key
        self.transcript: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        self._rng = np.random.default_rng(seed)
        self._t, self._gone = 0, set()
        self._awaited = {agent for agent in AGENTS if self._rng.random() < 0.6} or {"a"}
        self._seen = set(self._awaited)
        self.transcript.append(("reset",))
        return {agent: self._obs(agent) for agent in sorted(self._awaited)}, {}

    def _obs(self, agent: str) -> Any:
        return np.array([AGENTS.index(agent), self._t], np.float32)

    def step(self, actions: AgentDict) -> StepDicts:
        assert set(actions) == self._awaited, (set(actions), self._awaited)
        self._t += 1
        rewards = {a: float(self._rng.integers(-2, 3)) for a in AGENTS if a not in self._gone and a in self._seen}
        is_over = self._t >= 12
        leaves = {a for a in sorted(self._seen - self._gone) if is_over or self._rng.random() < 0.1}
        self._gone |= leaves
        rest = [agent for agent in AGENTS if agent not in self._gone and not is_over]
        self._awaited = {agent for agent in rest if self._rng.random() < 0.7}
        if rest and not self._awaited:
            self._awaited = {rest[0]}
        self._seen |= self._awaited
        obs = {agent: self._obs(agent) for agent in sorted(self._awaited | leaves)}
        is_over = is_over or not self._seen - self._gone
        if is_over:
            self._awaited = set()
        terminateds: dict[str, Any] = {agent: True for agent in sorted(leaves)}
        if self._has_all_key:
            terminateds["__all__"] = is_over
        self.transcript.append((dict(actions), dict(rewards), sorted(leaves), is_over))
        return obs, rewards, terminateds, {}, {}
