"""Close environments without failing the run."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from runner.config.errors import Problem
from runner.config.user_code import USER_ERRORS, problem_of

_log = logging.getLogger(__name__)


def close_environments(environments: Iterable[Any]) -> None:
    """Close all environments; log each different error as a warning with the class and the line."""
    problems = dict.fromkeys(filter(None, map(closing_problem, environments)))
    for problem in problems:
        _log.warning("%s", problem.render_alone())


def closing_problem(environment: Any) -> Problem | None:
    """Close an environment; return the problem if it fails, or None."""
    try:
        environment.close()
    except USER_ERRORS as error:
        name = type(getattr(environment, "unwrapped", environment)).__name__
        what = f"{name} raised {type(error).__name__} in close: {error}".rstrip(": ")
        return Problem(what, problem_of(error).where, fix="write a close that can be called in every state")
    return None
