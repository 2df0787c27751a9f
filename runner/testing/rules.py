"""Building blocks of contracts: rules that yield problems, and one error that lists all of them."""

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

# Yields a problem for each way in which it is broken, or nothing.
Rule = Callable[[], Iterable[Problem]]
_HERE = str(Path(__file__).parent)


class BrokenContract(AssertionError):
    """A component breaks rules of its contract; pytest treats it as a failed test.

    Attributes:
        problems: one problem for each way in which a rule is broken.
    """

    def __init__(self, name: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = f"{len(problems)} rule" + ("" if len(problems) == 1 else "s")
        paragraphs = [problem.render(number) for number, problem in enumerate(problems, start=1)]
        super().__init__("\n\n".join([f"{name} breaks {count} of its contract", *paragraphs]))


def check_rules(name: str, rules: Iterable[Rule]) -> None:
    """Check all rules.

    Raises:
        BrokenContract: rules are broken; the message lists each problem once. An error raised by a rule after a broken
            rule is considered its consequence, and left out.
    """
    problems: dict[Problem, None] = {}
    for rule in rules:
        problems |= dict.fromkeys(problems_of(rule, is_explained=bool(problems)))
    if problems:
        raise BrokenContract(name, list(problems))


def problems_of(rule: Rule, is_explained: bool = False) -> Iterator[Problem]:
    """Yield the problems of a rule; an error is also a problem, unless it `is_explained` by another one."""
    try:
        yield from rule()
    except ConfigError as error:
        yield from error.problems
    except RunFailure as error:
        yield error.problem
    except Exception as error:  # user-defined components may raise any error
        if not is_explained:
            yield Problem(f"{type(error).__name__}: {error}", _newest_line(error))


def _newest_line(error: Exception) -> str:
    """Return the newest line of an error outside this package, or its newest line if there is none outside."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith(_HERE)]
    frame = (outside or frames)[-1]
    return f"{frame.filename}:{frame.lineno}"


# -- states ------------------------------------------------------------------------------------------------------------


def through_checkpoint(state: Mapping[str, Any], owner: str) -> Any:
    """Return a state as a resumed run reads it from a checkpoint.

    Raises:
        RunFailure: the state contains a value that checkpoints do not support.
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
    """Return whether nested values are equal, including the dtypes of arrays.

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
    """Return the first key that is missing in one of them or whose values differ, or None."""
    keys = dict.fromkeys([*first, *second])
    return next((k for k in keys if k not in first or k not in second or not are_equal(first[k], second[k])), None)


def differing_attributes(first: Any, second: Any) -> list[str]:
    """Return the names of the attributes in which two objects of one class differ.

    Values that cannot be compared, such as functions, files and locks, are considered equal.
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
    """Return shape and dtype of an array or tensor, leaf by leaf, or the type of any other value."""
    if isinstance(value, (dict, tuple)):
        return str(nested.map_leaves(outline, value))
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"shape {tuple(value.shape)} and dtype {str(value.dtype).removeprefix('torch.')}"
    return type(value).__name__
