"""Rewards and flags that environments return, as Python values, and the errors of environments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from runner.config.errors import Problem, RunFailure
from runner.config.user_code import problem_of
from runner.env_runners.observation_checks import outline


class EnvFailure(RunFailure):
    """An environment raised an error, hung, or its process ended; re-creating it may help."""


def failure_of(error: BaseException, method: str, where: str = "", got: str | None = None) -> EnvFailure:
    """Return the failure for an error that an environment raised in `reset` or `step`."""
    problem = problem_of(error, where)
    what = f"the environment raised {type(error).__name__} in {method}: {error}".rstrip(": ")
    return EnvFailure(replace(problem, what=what, got=got or problem.got))


def reward_of(value: Any, where: str) -> float:
    """Return a reward as a float; arrays of one number count as that number.

    Raises:
        RunFailure: it is not a number.
    """
    if type(value) is float or type(value) is np.float64:
        return value
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise RunFailure(Problem("the environment's reward is not a number", where, outline(value), "a float"))
    return float(array.item())


def flag_of(value: Any, name: str, where: str) -> bool:
    """Return `terminated` or `truncated` as a bool; 0, 1, None and arrays of one such value also count.

    Raises:
        RunFailure: it is anything else, such as a string.
    """
    if value is None or type(value) is bool or type(value) is np.bool_:
        return bool(value)
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf" or array.item() not in (0, 1):
        got = repr(value) if array.ndim == 0 else outline(value)
        raise RunFailure(Problem(f"the environment's {name} is not a bool", where, got, "True or False"))
    return bool(array.item())


def kinds_of(answer: Any) -> str:
    """Return the types of the values that `reset` or `step` returned."""
    if isinstance(answer, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in answer) or 'nothing'}"
    return type(answer).__name__
