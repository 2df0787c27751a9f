"""Curricula: an environment's options as tasks, drawn for each episode according to the results so far."""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> submodule; also read (not imported) by `runner validate`.
_EXPORTS: dict[str, str] = {
    "Curriculum": "curriculum",
    "TaskedEnv": "tasked_env",
    "TaskedMultiAgentEnv": "tasked_env",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
