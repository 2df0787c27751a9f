"""Environments whose episodes are as long as an option says, and as fast as an argument says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from runner.env_runners.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from runner.environments.games import TicTacToe


class Drill(gym.Env[Any, Any]):
    """Observations are noise times speed, rewards noise; the last info has `height`: ten times the actions' sum."""

    def __init__(self, speed: float = 1.0, width: int = 2) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.speed = speed

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.length = (options or {}).get("length", 5)
        self._t, self._sum = 0, 0
        return self._obs(), {}

    def _obs(self) -> Any:
        noise = self.np_random.standard_normal(self.observation_space.shape) + self._sum
        return (self.speed * noise).astype(np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        self._sum += int(action)
        is_over = self._t == self.length
        info = {"height": 10.0 * self._sum, "name": "drill"} if is_over else {}
        return self._obs(), float(self.np_random.random()) + self._sum, is_over, False, info


class StatefulDrill(Drill):
    """Tells its state by itself."""

    def get_state(self) -> dict[str, Any]:
        generator = dict(self.np_random.bit_generator.state)
        return {"t": self._t, "sum": self._sum, "length": self.length, "generator": generator}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._t, self._sum, self.length = state["t"], state["sum"], state["length"]
        self.np_random.bit_generator.state = state["generator"]


class TeamDrill(MultiAgentEnv):
    """Two drills, of agents a and b, that end together."""

    possible_agents = ("a", "b")

    def __init__(self, speed: float = 1.0) -> None:
        self._drills = {agent: Drill(speed) for agent in self.possible_agents}
        self.observation_spaces = {agent: drill.observation_space for agent, drill in self._drills.items()}
        self.action_spaces = {agent: drill.action_space for agent, drill in self._drills.items()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        seeds = np.random.SeedSequence(seed).generate_state(2)
        pairs = zip(self._drills.items(), seeds.tolist(), strict=True)
        return {agent: drill.reset(seed=own, options=options)[0] for (agent, drill), own in pairs}, {}

    def step(self, actions: AgentDict) -> StepDicts:
        steps = {agent: drill.step(actions[agent]) for agent, drill in self._drills.items()}
        obs, rewards, terminateds, truncateds, infos = (
            {agent: step[part] for agent, step in steps.items()} for part in range(5)
        )
        return obs, rewards, {**terminateds, "__all__": all(terminateds.values())}, truncateds, infos


class Opening(TicTacToe):
    """Tic-tac-toe after some random moves, of which none wins."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        rng = np.random.default_rng(seed)
        obs, infos = super().reset(seed=seed)
        for _ in range((options or {}).get("moves", 0)):
            (agent,) = obs
            free = np.flatnonzero(obs[agent]["action_mask"])
            after, _, terminateds, _, _ = self.step({agent: int(rng.choice(free))})
            if terminateds.get("__all__"):
                return super().reset(seed=seed)
            obs = after
        return obs, infos
