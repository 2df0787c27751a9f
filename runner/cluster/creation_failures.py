"""Errors that Ray actors raise in their constructors; Ray forwards only their text."""

from __future__ import annotations

import importlib
from typing import Any

from runner.config.errors import Problem, RunFailure, RunnerError, UserError

_FRAME = '  File "'


def creation_failure(error: Any, what: str) -> RunnerError:
    """Return the error of an actor that could not be created.

    Args:
        error: Ray's error, whose text contains the stack trace of the constructor.
        what: the beginning of the message, such as "env runner 1 cannot be created".
    """
    raised = _raised_text(str(error))
    name, _, text = raised.partition(": ")
    if _is_user_error(name):
        return UserError(text)
    return RunFailure(Problem(f"{what}: {raised}"))


def _raised_text(trace: str) -> str:
    """Return the class and the complete message of the error at the end of a stack trace."""
    lines = trace.strip().splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith(_FRAME)]
    if not frames:
        return lines[-1]
    rest = lines[frames[-1] + 1 :]
    while len(rest) > 1 and rest[0].startswith(" "):  # source lines of the frame
        del rest[0]
    return "\n".join(rest)


def _is_user_error(name: str) -> bool:
    module, _, class_name = name.rpartition(".")
    if not module.startswith("runner."):
        return False
    try:
        found = getattr(importlib.import_module(module), class_name, None)
    except ImportError:
        return False
    return isinstance(found, type) and issubclass(found, UserError)
