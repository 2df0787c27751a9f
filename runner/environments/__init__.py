"""Small environments that the experiments under `conf/experiment/` train on, and PettingZoo's."""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> submodule; also read (not imported) by `runner validate`.
_EXPORTS: dict[str, str] = {
    "AgentsAsOne": "agents_as_one",
    "BitFlipping": "bit_flipping",
    "Catch": "catch",
    "CrashAndStall": "misbehaving",
    "DictCartPole": "cartpoles",
    "InvestmentGame": "matrix_games",
    "GoalMaze": "goal_maze",
    "MaskedCartPole": "cartpoles",
    "MinAtar": "minatar",
    "MultiAgentCartPole": "cartpoles",
    "MultiAgentPendulum": "separate_agents",
    "NewWorld": "new_world",
    "PettingZooEnv": "petting_zoo",
    "Pursuit": "pursuit",
    "StatelessCartPole": "cartpoles",
    "TicTacToe": "tic_tac_toe",
    "TwoStepGame": "matrix_games",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
