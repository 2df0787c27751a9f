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
