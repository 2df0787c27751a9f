"""Small games of two agents: matrix games, a pursuit in the plane, and tic-tac-toe with its solution."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runner.env_runners.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from runner.state import DeclaredState

_AGENTS = ("agent_0", "agent_1")
_FIRST, _SAFE, _RISKY = 0, 1, 2
_PAYOFFS = {_SAFE: np.full((2, 2), 7.0), _RISKY: np.array([[0.0, 1.0], [1.0, 8.0]])}


class TwoStepGame(MultiAgentEnv):
    """The two-step game of QMIX (Rashid et al., 2018, https://arxiv.org/abs/1803.11485, section 5 and table 1).

    In the first step `agent_0` chooses the game of the second step. Action 0 leads to payoffs of 7 for all actions,
    action 1 to payoffs [[0, 1], [1, 8]]. Both agents observe the step and the game, Discrete(3). Each agent gets half
    of the payoff. The best return is 8. A sum of per-agent action values, as in VDN, cannot represent that the second
    game is worth 8, and ends at 7.
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
    """Each agent takes 1 now, or invests it for 2 later; until the payoff, only the other agent sees the choice.

    In the first step action 0 takes and action 1 invests, with joint payoffs [[2, 1], [1, 0]]. Actions do nothing in
    the next `num_waits` steps. In the last step the payoffs are [[0, 2], [2, 4]]. Each agent gets half of a payoff. An
    observation is (3,) float32: the fraction of steps that are over, and a one-hot of the other agent's choice. The
    best return is 4; agents that take reach 2.

    **Why a critic fails that sees only its agent's observations.** Write d for `num_waits + 1`. An agent's observations
    do not depend on its own first action, so neither do the values that its critic predicts. The estimated advantage
    (GAE) of the first action is a sum of temporal differences, in which only the rewards depend on the action:
    investing gets -1/2 + (gamma lambda)^d relative to taking. That is negative if (gamma lambda)^d is below 1/2, so the
    policy gradient leads to taking, for any policies and any critic. With gamma 1, lambda 0.95 and 19 waiting steps it
    is -1/2 + 0.36. A critic of both observations sees both choices. Once it has learned, each temporal difference after
    the first step is 0, and investing gets -1/2 + gamma^d.

    Args:
        num_waits: number of steps between choice and payoff.

    Attributes:
        state_space: space of the state (3,) float32 in the infos: the fraction of steps that are over, and whether each
            agent has invested.

    Raises:
        ValueError: the number of waiting steps is negative.
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


Vectors = npt.NDArray[np.float64]
_CHASE_AGENTS = ("chaser", "evader")
_CHASE_PIXELS = 200


class Pursuit(DeclaredState, MultiAgentEnv):
    """`chaser` and `evader` accelerate in the square [-1, 1]²; walls stop them.

    The chaser is faster, the evader more agile. An observation is (8,) float32: the agent's position and velocity, and
    the other agent's relative to them. An action is (2,) float32 from -1 to 1: the acceleration, as a fraction of the
    maximum. The winner gets the reward 1, the other agent -1. The chaser wins at a distance below 0.1, the evader after
    `max_steps` env steps.

    Args:
        max_steps: length of an episode.
        render_mode: `rgb_array`, for images.
    """

    metadata: Mapping[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}
    possible_agents = _CHASE_AGENTS
    state = ("_places", "_velocities", "_num_steps")
    _REACH = 0.1
    _STEP_S = 0.1
    _FASTEST = np.array([[0.8], [0.6]])  # distance per second: the chaser, the evader
    _ACCELERATION = np.array([[1.5], [3.0]])

    def __init__(self, max_steps: int = 100, render_mode: str | None = None) -> None:
        seen = gym.spaces.Box(-3.0, 3.0, (8,), np.float32)
        self.observation_spaces = dict.fromkeys(_CHASE_AGENTS, seen)
        self.action_spaces = dict.fromkeys(_CHASE_AGENTS, gym.spaces.Box(-1.0, 1.0, (2,), np.float32))
        self._max_steps = max_steps
        self._places: Vectors = np.zeros((2, 2))
        self._velocities: Vectors = np.zeros((2, 2))
        self._num_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        """Start at random positions at least 0.5 apart, at rest."""
        rng = np.random.default_rng(seed)
        while True:
            self._places = rng.uniform(-1.0, 1.0, (2, 2))
            if np.hypot(*(self._places[0] - self._places[1])) >= 0.5:
                break
        self._velocities = np.zeros((2, 2))
        self._num_steps = 0
        return self._seen(), {}

    def _seen(self) -> AgentDict:
        places, velocities = self._places, self._velocities
        return {
            agent: np.concatenate(
                [places[n], velocities[n], places[1 - n] - places[n], velocities[1 - n] - velocities[n]]
            ).astype(np.float32)
            for n, agent in enumerate(_CHASE_AGENTS)
        }

    def step(self, actions: AgentDict) -> StepDicts:
        """Move both for a tenth of a second."""
        shares = np.clip(np.array([actions[agent] for agent in _CHASE_AGENTS], np.float64), -1.0, 1.0)
        velocities = self._velocities + shares * self._ACCELERATION * self._STEP_S
        speeds = np.linalg.norm(velocities, axis=1, keepdims=True)
        velocities *= np.minimum(1.0, self._FASTEST / np.maximum(speeds, 1e-9))
        places = self._places + velocities * self._STEP_S
        velocities[np.abs(places) > 1.0] = 0.0
        self._places, self._velocities = np.clip(places, -1.0, 1.0), velocities
        self._num_steps += 1
        is_caught = bool(np.hypot(*(self._places[0] - self._places[1])) < self._REACH)
        is_over = is_caught or self._num_steps >= self._max_steps
        lead = 0.0 if not is_over else 1.0 if is_caught else -1.0
        rewards = {_CHASE_AGENTS[0]: lead, _CHASE_AGENTS[1]: -lead}
        return self._seen(), rewards, {"__all__": is_over}, {"__all__": False}, {}

    def render(self) -> npt.NDArray[np.uint8]:
        """Return an image of the square: the chaser is red, the evader blue."""
        picture = np.full((_CHASE_PIXELS, _CHASE_PIXELS, 3), 245, np.uint8)
        rows, columns = np.mgrid[:_CHASE_PIXELS, :_CHASE_PIXELS]
        for place, colour in zip(self._places, ((200, 60, 60), (60, 90, 200)), strict=True):
            column, row = (place * (1, -1) + 1) / 2 * (_CHASE_PIXELS - 1)
            picture[(rows - row) ** 2 + (columns - column) ** 2 < (_CHASE_PIXELS * self._REACH / 4) ** 2] = colour
        return picture


# Cells of a board: 0 empty, 1 and -1 the marks of the two agents.
Board = tuple[int, ...]
_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
_PLAYERS = ("player_0", "player_1")
_CELL_PIXELS = 40  # side of a cell


class TicTacToe(DeclaredState, MultiAgentEnv):
    """Tic-tac-toe; `player_0` begins. The winner gets the reward 1, the loser -1, and both 0 in a draw.

    An agent observes `{"observations": (2, 3, 3) as (18,) float32, "action_mask": (9,) int8}`: its marks, the other
    agent's marks, and the empty cells. Actions are the cells 0 to 8, row by row.

    Args:
        render_mode: `rgb_array`, for images.

    Raises:
        ValueError: (from `step`) the cell is not empty.
    """

    metadata: Mapping[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 2}
    possible_agents = _PLAYERS
    state = ("_board", "_turn")

    def __init__(self, render_mode: str | None = None) -> None:
        seen = gym.spaces.Dict(
            observations=gym.spaces.Box(0.0, 1.0, (18,), np.float32), action_mask=gym.spaces.MultiBinary(9)
        )
        self.observation_spaces = dict.fromkeys(_PLAYERS, seen)
        self.action_spaces = dict.fromkeys(_PLAYERS, gym.spaces.Discrete(9))
        self._board, self._turn = np.zeros(9, np.int8), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        """Start a game; nothing in it is random."""
        self._board, self._turn = np.zeros(9, np.int8), 0
        return {_PLAYERS[0]: self._seen_by(0)}, {}

    def _seen_by(self, number: int) -> dict[str, npt.NDArray[Any]]:
        own = 1 - 2 * number
        seen = np.zeros(18, np.float32)
        np.equal(self._board, own, out=seen[:9], casting="unsafe")
        np.equal(self._board, -own, out=seen[9:], casting="unsafe")
        return {"observations": seen, "action_mask": (self._board == 0).view(np.int8)}

    def step(self, actions: AgentDict) -> StepDicts:
        """Mark a cell for the agent whose turn it is."""
        number = self._turn
        cell = int(actions[_PLAYERS[number]])
        if self._board[cell]:
            raise ValueError(f"cell {cell} is not empty")
        self._board[cell] = 1 - 2 * number
        self._turn = 1 - number
        lead = winner(tuple(self._board.tolist()))
        if not lead and not self._board.all():
            return {_PLAYERS[self._turn]: self._seen_by(self._turn)}, {}, {"__all__": False}, {"__all__": False}, {}
        rewards = {_PLAYERS[0]: float(lead), _PLAYERS[1]: float(-lead)}
        obs = {agent: self._seen_by(place) for place, agent in enumerate(_PLAYERS)}
        return obs, rewards, {"__all__": True}, {"__all__": False}, {}

    def render(self) -> npt.NDArray[np.uint8]:
        """Return an image of the board: crosses' cells are red, the other's blue."""
        colours = np.array([[240, 240, 240], [200, 60, 60], [60, 90, 200]], np.uint8)
        cells = colours[self._board.reshape(3, 3) % 3].repeat(_CELL_PIXELS, 0).repeat(_CELL_PIXELS, 1)
        cells[::_CELL_PIXELS], cells[:, ::_CELL_PIXELS] = 0, 0
        return cells


def winner(board: Board) -> int:
    """Return the mark that has three in a row, or 0."""
    for a, b, c in _LINES:
        if board[a] and board[a] == board[b] == board[c]:
            return board[a]
    return 0


@cache
def value(board: Board) -> int:
    """Return the best guaranteed result for the agent with mark 1, whose turn it is: 1 win, 0 draw, -1 loss."""
    if winner(board):
        return -1  # the other agent has just won
    if all(board):
        return 0
    return max(-value(_after(board, cell)) for cell in range(9) if not board[cell])


@cache
def best_moves(board: Board) -> tuple[int, ...]:
    """Return the cells that reach `value`."""
    best = value(board)
    return tuple(cell for cell in range(9) if not board[cell] and -value(_after(board, cell)) == best)


def _after(board: Board, cell: int) -> Board:
    return tuple(-(1 if place == cell else mark) for place, mark in enumerate(board))
