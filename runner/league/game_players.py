"""Players of the bundled games."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runner.environments.tic_tac_toe import best_moves
from runner.league.players import Player, Seat


class PerfectTicTacToePlayer(Player):
    """Plays tic-tac-toe by minimax, and draws among the moves that are best.

    Args:
        action_space: of the agents.
    """

    def __init__(self, action_space: gym.Space[Any]) -> None:
        del action_space

    def act(self, obs: Any, seats: Sequence[Seat], rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """See `Player`."""
        marks = obs["observations"].reshape(-1, 2, 9)
        boards = (marks[:, 0] - marks[:, 1]).astype(int)
        return np.array([rng.choice(best_moves(tuple(board))) for board in boards.tolist()], np.int64)


class OneMoveAheadConnectFourPlayer(Player):
    """Plays PettingZoo's connect four: wins if it can, else prevents the other's win, else moves at random.

    Args:
        action_space: of the agents.
    """

    def __init__(self, action_space: gym.Space[Any]) -> None:
        del action_space

    def act(self, obs: Any, seats: Sequence[Seat], rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """See `Player`."""
        rows = zip(obs["observation"], obs["action_mask"], strict=True)
        return np.array([_next_column(board, np.flatnonzero(mask), rng) for board, mask in rows], np.int64)


def _next_column(board: npt.NDArray[Any], open_columns: npt.NDArray[Any], rng: np.random.Generator) -> int:
    """Return a column for whom the first plane (6, 7) of the board (6, 7, 2) belongs to; row 5 is the lowest."""
    for plane in (0, 1):
        for column in open_columns:
            row = int(np.flatnonzero(~board[:, column].any(1))[-1])
            if _has_four(board[:, :, plane] != 0, row, int(column)):
                return int(column)
    return int(rng.choice(open_columns))


def _has_four(marks: npt.NDArray[np.bool_], row: int, column: int) -> bool:
    """Return whether a mark on an empty cell makes four in a row."""
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        length = 1
        for sign in (1, -1):
            r, c = row + sign * down, column + sign * right
            while 0 <= r < 6 and 0 <= c < 7 and marks[r, c]:
                length, r, c = length + 1, r + sign * down, c + sign * right
        if length >= 4:
            return True
    return False
