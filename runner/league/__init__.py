"""Leagues: fixed opponents, snapshots of the past, rules that draw them, and ratings of all players."""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> submodule; also read (not imported) by `runner validate`.
_EXPORTS: dict[str, str] = {
    "OneMoveAheadConnectFourPlayer": "players",
    "PerfectTicTacToePlayer": "players",
    "Player": "players",
    "RandomPlayer": "players",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
