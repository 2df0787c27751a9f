"""What contracts are made of: rules that yield what breaks them, and one error that lists all of it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from runner.checkpoints.files import Reference, UnstorableError, from_plain, to_plain
from runner.config.errors import ConfigError, Problem, RunFailure
from runner.episodes import nested
from runner.segments import Segment
from runner.streams import stream_state

# Yields a problem for each way in which it is broken; none: it is kept.
Rule = Callable[[], Iterable[Problem]]
_HERE = str(Path(__file__).parent)


class BrokenContract(AssertionError):
    """A part breaks rules of its contract; to pytest a failed test.

    Attributes:
        problems: what is broken, where, what was got and what is allowed.
    """

    def __init__(self, name: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = f"{len(problems)} rule" + ("" if len(problems) == 1 else "s")
        paragraphs = [problem.render(number) for number, problem in enumerate(problems, start=1)]
        super().__init__("\n\n".join([f"{name} breaks {count} of its contract", *paragraphs]))


def check_rules(name: str, rules: Iterable[Rule]) -> None:
    """Check all rules.

    Raises:
        BrokenContract: some are broken; it lists all of them, each problem once. An error in a rule after a broken one
            is taken as its consequence, and left out.
    """
    problems: dict[Problem, None] = {}
    for rule in rules:
        problems |= dict.fromkeys(problems_of(rule, is_explained=bool(problems)))
    if problems:
        raise BrokenContract(name, list(problems))


def problems_of(rule: Rule, is_explained: bool = False) -> Iterator[Problem]:
    """Yield what breaks a rule; an error of the part is one, too, unless it `is_explained` by another problem."""
    try:
        yield from rule()
    except ConfigError as error:
        yield from error.problems
    except RunFailure as error:
        yield error.problem
    except Exception as error:  # a part of a user may raise anything
        if not is_explained:
            yield Problem(f"{type(error).__name__}: {error}", _newest_line(error))


def _newest_line(error: Exception) -> str:
    """Return the newest line of an error outside of this package; where a call itself fails there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith(_HERE)]
    frame = (outside or frames)[-1]
    return f"{frame.filename}:{frame.lineno}"


# -- states ------------------------------------------------------------------------------------------------------------


def through_checkpoint(state: Mapping[str, Any], owner: str) -> Any:
    """Return a state as a resumed run reads it from a checkpoint.

    Raises:
        RunFailure: it has a value that no checkpoint holds.
    """
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    segments: list[Segment] = []

    def put(segment: Segment) -> Reference:
        segments.append(segment)
        return [str(len(segments) - 1), 0]

    try:
        plain = to_plain(state, "state", arrays, put)
    except UnstorableError as error:
        raise RunFailure(replace(error.problem, where=f"{owner}.get_state")) from error
    return from_plain(plain, arrays, lambda reference: segments[int(reference[0])])


def are_equal(first: Any, second: Any) -> bool:
    """Return whether nested values are the same, arrays of the same dtype.

    NaNs are equal to each other; so are a list and a tuple, and a number and an array of it.
    """
    if isinstance(first, Mapping):
        is_same_kind = isinstance(second, Mapping) and first.keys() == second.keys()
        return is_same_kind and all(are_equal(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        is_same_kind = isinstance(second, (list, tuple)) and len(first) == len(second)
        return is_same_kind and all(map(are_equal, first, second))
    if hasattr(first, "ndim") and hasattr(second, "ndim") and first.dtype != second.dtype:
        return False
    one, other = np.asarray(first), np.asarray(second)
    has_nan = one.dtype.kind in "fc" and other.dtype.kind in "fc"
    return bool(np.array_equal(one, other, equal_nan=has_nan))


def find_difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """Return the first key whose values differ, or that only one has; None if there is none."""
    keys = dict.fromkeys([*first, *second])
    return next((k for k in keys if k not in first or k not in second or not are_equal(first[k], second[k])), None)


def differing_attributes(first: Any, second: Any) -> list[str]:
    """Return the names of the attributes of two objects of one class whose values differ.

    What cannot be compared counts as equal: functions, files, locks.
    """
    return [name for name in vars(first) if _differ(vars(first)[name], vars(second).get(name), set())]


def _differ(first: Any, second: Any, seen: set[int]) -> bool:
    if first is second or id(first) in seen:
        return False
    seen.add(id(first))
    if type(first) is not type(second):
        return True
    if isinstance(first, Mapping):
        return first.keys() != second.keys() or any(_differ(first[key], second[key], seen) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) != len(second) or any(map(_differ, first, second, [seen] * len(first)))
    if isinstance(first, np.random.Generator):
        return not are_equal(stream_state(first), stream_state(second))
    if isinstance(first, Tensor):
        return not are_equal(first.detach().cpu().numpy(), second.detach().cpu().numpy())
    if isinstance(first, (np.ndarray, np.generic, str, bytes, int, float, complex, set, frozenset)):
        return not are_equal(first, second)
    return not isinstance(first, type) and hasattr(first, "__dict__") and _differ(vars(first), vars(second), seen)


def outline(value: Any) -> str:
    """Return shape and dtype of an array or a tensor, leaf by leaf; the type of anything else."""
    if isinstance(value, (dict, tuple)):
        return str(nested.map_leaves(outline, value))
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"shape {tuple(value.shape)} and dtype {str(value.dtype).removeprefix('torch.')}"
    return type(value).__name__
