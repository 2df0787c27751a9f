"""Games of two agents whose payoffs lie in matrices."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runner.env_runners.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts

_AGENTS = ("agent_0", "agent_1")
_FIRST, _SAFE, _RISKY = 0, 1, 2
_PAYOFFS = {_SAFE: np.full((2, 2), 7.0), _RISKY: np.array([[0.0, 1.0], [1.0, 8.0]])}


class TwoStepGame(MultiAgentEnv):
    """The two-step game of QMIX (Rashid et al., 2018, https://arxiv.org/abs/1803.11485, section 5 and table 1).

    In the first step `agent_0` chooses the game of the second one: action 0 leads to payoffs of 7 whatever the agents
    do, action 1 to payoffs [[0, 1], [1, 8]]. Both observe which step and game it is, Discrete(3). A payoff is of both
    agents together: each gets a half. The best return is 8; a sum of values of each agent's action, as VDN has it,
    cannot tell that the second game is worth 8, and ends at 7.
    """

    possible_agents = _AGENTS

    def __init__(self) -> None:
        self.observation_spaces = dict.fromkeys(_AGENTS, gym.spaces.Discrete(3))
        self.action_spaces = dict.fromkeys(_AGENTS, gym.spaces.Discrete(2))
        self._place = _FIRST

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        """Start an episode."""
        self._place = _FIRST
        return self._observe(), {}

    def step(self, actions: AgentDict) -> StepDicts:
        """Choose the game, or play it."""
        if self._place == _FIRST:
            self._place = _RISKY if int(actions["agent_0"]) else _SAFE
            return self._observe(), dict.fromkeys(_AGENTS, 0.0), {}, {}, {}
        payoff = float(_PAYOFFS[self._place][int(actions["agent_0"]), int(actions["agent_1"])])
        return self._observe(), dict.fromkeys(_AGENTS, payoff / 2), {"__all__": True}, {"__all__": False}, {}

    def _observe(self) -> AgentDict:
        return dict.fromkeys(_AGENTS, self._place)


class InvestmentGame(MultiAgentEnv):
    """Each agent takes 1 now, or invests it for 2 later; only the other agent sees which, until the payoff.

    In the first step action 0 takes and action 1 invests: payoffs [[2, 1], [1, 0]] of both together. `num_waits` steps
    follow in which actions do nothing, and in the last one the payoffs are [[0, 2], [2, 4]]. Each agent gets a half of
    a payoff. An observation is (3,) float32: the share of the steps that are over, and one of two marks, what the
    other agent did. The best return is 4; agents that take end with 2.

    **Why a critic that sees what its agent sees fails.** Let d be `num_waits + 1`. An agent's observations do not
    depend on its own first action, so neither do the values that its critic gives them, whatever it has learned. Its
    estimated advantage (GAE) of the first action is a sum of temporal differences, in which therefore only the
    rewards depend on it: investing has, against taking, -1/2 + (gamma lambda)^d. That is negative if (gamma lambda)^d
    is below 1/2: the policy gradient leads to taking, for any policies and any critic. With gamma 1, lambda 0.95 and 19
    waiting steps it is -1/2 + 0.36. A critic of both observations sees both choices. Where it has learned, each
    temporal difference after the first step is 0, and investing has -1/2 + gamma^d.

    Args:
        num_waits: steps between choice and payoff.

    Attributes:
        state_space: of the state (3,) float32, which infos hold: the share of the steps that are over, and whether each
            agent has invested.

    Raises:
        ValueError: fewer than 0 waiting steps.
    """

    possible_agents = _AGENTS

    def __init__(self, num_waits: int = 19) -> None:
        if num_waits < 0:
            raise ValueError(f"num_waits must be 0 or more, got {num_waits}")
        self._num_steps = num_waits + 2
        box = gym.spaces.Box(0.0, 1.0, (3,), np.float32)
        self.observation_spaces = dict.fromkeys(_AGENTS, box)
        self.action_spaces = dict.fromkeys(_AGENTS, gym.spaces.Discrete(2))
        self.state_space = box
        self._t = 0
        self._invested: dict[str, int] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        """Start an episode."""
        self._t, self._invested = 0, {}
        return self._observe(), self._infos()

    def step(self, actions: AgentDict) -> StepDicts:
        """Choose, wait, or be paid."""
        payoff = 0.0
        if self._t == 0:
            self._invested = {agent: int(action) for agent, action in actions.items()}
            payoff = 2.0 - sum(self._invested.values())
        self._t += 1
        is_over = self._t == self._num_steps
        if is_over:
            payoff += 2.0 * sum(self._invested.values())
        rewards = dict.fromkeys(_AGENTS, payoff / 2)
        return self._observe(), rewards, {"__all__": is_over}, {"__all__": False}, self._infos()

    def state(self) -> npt.NDArray[np.float32]:
        """Return the state; see `state_space`."""
        invested = (self._invested.get(agent, 0) for agent in _AGENTS)
        return np.array([self._t / self._num_steps, *invested], np.float32)

    def _infos(self) -> AgentDict:
        return {agent: {"state": self.state()} for agent in _AGENTS}

    def _observe(self) -> AgentDict:
        others = dict(zip(_AGENTS, reversed(_AGENTS), strict=True))
        return {agent: self._seen(self._invested.get(other)) for agent, other in others.items()}

    def _seen(self, other: int | None) -> npt.NDArray[np.float32]:
        return np.array([self._t / self._num_steps, other == 0, other == 1], np.float32)
