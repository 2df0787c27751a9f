"""Tic-tac-toe for two agents that take turns, and its solution."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runner.env_runners.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts

# Cells of a board: 0 empty, 1 and -1 the marks of the two agents.
Board = tuple[int, ...]
_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
_AGENTS = ("player_0", "player_1")
_EMPTY: Board = (0,) * 9
_PIXELS = 40  # of a cell's side


class TicTacToe(MultiAgentEnv):
    """Tic-tac-toe; `player_0` begins. The winner has the reward 1, the loser -1, both 0 in a draw.

    An agent sees `{"observations": (2, 3, 3) as (18,) float32, "action_mask": (9,) int8}`: where its own marks
    are, where the other's are, and which cells are empty. Actions are the cells 0 to 8, row by row.

    Args:
        render_mode: `rgb_array`, for pictures.

    Raises:
        ValueError: (from `step`) a cell that is not empty.
    """

    metadata: Mapping[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 2}
    possible_agents = _AGENTS

    def __init__(self, render_mode: str | None = None) -> None:
        seen = gym.spaces.Dict(
            observations=gym.spaces.Box(0.0, 1.0, (18,), np.float32), action_mask=gym.spaces.MultiBinary(9)
        )
        self.observation_spaces = dict.fromkeys(_AGENTS, seen)
        self.action_spaces = dict.fromkeys(_AGENTS, gym.spaces.Discrete(9))
        self._board, self._turn = np.zeros(9, np.int8), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        """Start a game; nothing in it is random."""
        self._board, self._turn = np.zeros(9, np.int8), 0
        return {_AGENTS[0]: self._seen_by(0)}, {}

    def _seen_by(self, number: int) -> dict[str, npt.NDArray[Any]]:
        own = 1 - 2 * number
        seen = np.zeros(18, np.float32)
        np.equal(self._board, own, out=seen[:9], casting="unsafe")
        np.equal(self._board, -own, out=seen[9:], casting="unsafe")
        return {"observations": seen, "action_mask": (self._board == 0).view(np.int8)}

    def step(self, actions: AgentDict) -> StepDicts:
        """Let the agent whose turn it is mark a cell."""
        number = self._turn
        cell = int(actions[_AGENTS[number]])
        if self._board[cell]:
            raise ValueError(f"cell {cell} is not empty")
        self._board[cell] = 1 - 2 * number
        self._turn = 1 - number
        lead = winner(tuple(self._board.tolist()))
        if not lead and not self._board.all():
            return {_AGENTS[self._turn]: self._seen_by(self._turn)}, {}, {"__all__": False}, {"__all__": False}, {}
        rewards = {_AGENTS[0]: float(lead), _AGENTS[1]: float(-lead)}
        obs = {agent: self._seen_by(place) for place, agent in enumerate(_AGENTS)}
        return obs, rewards, {"__all__": True}, {"__all__": False}, {}

    def get_state(self) -> dict[str, Any]:
        """Return the board and whose turn it is."""
        return {"board": self._board.tolist(), "turn": self._turn}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        self._board, self._turn = np.array(state["board"], np.int8), int(state["turn"])

    def render(self) -> npt.NDArray[np.uint8]:
        """Return a picture of the board: crosses' cells are red, the other's blue."""
        colours = np.array([[240, 240, 240], [200, 60, 60], [60, 90, 200]], np.uint8)
        cells = colours[self._board.reshape(3, 3) % 3].repeat(_PIXELS, 0).repeat(_PIXELS, 1)
        cells[::_PIXELS], cells[:, ::_PIXELS] = 0, 0
        return cells


def winner(board: Board) -> int:
    """Return the mark that has three in a row; 0 without one."""
    for a, b, c in _LINES:
        if board[a] and board[a] == board[b] == board[c]:
            return board[a]
    return 0


@cache
def value(board: Board) -> int:
    """Return what the agent with mark 1, whose turn it is, can reach at least: 1 a win, 0 a draw, -1 a loss."""
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
    """Return the board after a move, as the other agent sees it."""
    return tuple(-(1 if place == cell else mark) for place, mark in enumerate(board))
