"""Small environments that the experiments under `conf/experiment/` train on, and PettingZoo's."""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> submodule; also read (not imported) by `runner validate`.
_EXPORTS: dict[str, str] = {
    "AgentsAsOne": "several_agents",
    "BitFlipping": "small_tasks",
    "Catch": "small_tasks",
    "CrashAndStall": "misbehaving",
    "DictCartPole": "cartpoles",
    "InvestmentGame": "games",
    "GoalMaze": "small_tasks",
    "MaskedCartPole": "cartpoles",
    "MinAtar": "other_packages",
    "MultiAgentCartPole": "cartpoles",
    "MultiAgentPendulum": "several_agents",
    "NewWorld": "other_packages",
    "PettingZooEnv": "other_packages",
    "Pursuit": "games",
    "StatelessCartPole": "cartpoles",
    "TicTacToe": "games",
    "TwoStepGame": "games",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
