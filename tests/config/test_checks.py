"""Conversion of a value to its type: only integers for floats and keys of blocks are converted."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

import pytest

from runner.config.checks import MismatchError, check_value, convert
from runner.config.errors import list_names
from runner.config.fields import Option


class Colour(Enum):
    red = 1


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (3, float, 3.0),
        (3, int | float, 3),
        (3, float | list[list[float]], 3.0),
        ([[0, 1]], float | list[list[float]], [[0.0, 1.0]]),
        (None, int | None, None),
        ([1, 2], tuple[int, int], (1, 2)),
        ([1, 2, 3], tuple[int, ...], (1, 2, 3)),
        ("red", Colour, Colour.red),
        ("a", Literal["a", "b"], "a"),
        ({"x": 1}, dict[str, float], {"x": 1.0}),
        ({0: 1}, dict[str, float], {"0": 1.0}),
        ({0: 1}, dict[int, float], {0: 1.0}),
        ("anything", Any, "anything"),
    ],
)
def test_convert(value: Any, annotation: Any, expected: Any) -> None:
    result = convert(value, annotation)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        ("3", int), (1.0, int), (True, int), (True, float), ("3", float), (float("nan"), float), (1, bool),
        (1, str), (None, int), ([1, "a"], list[int]), ((1,), list[int]), ([1], tuple[int, int]),
        ("blue", Colour), (True, Literal[1]), ([], dict[str, int]), ({"x": "y"}, dict[str, int]),
    ],
)  # fmt: skip
def test_nothing_else_is_coerced(value: Any, annotation: Any) -> None:
    with pytest.raises(MismatchError):
        convert(value, annotation)


def test_bounds_hold_for_items_and_exclude_nan() -> None:
    option = Option("", minimum=1, below=5)
    assert check_value("x", [1, 4], list[int], option) is None
    for value in ([0], [5]):
        problem = check_value("x", value, list[int], option)
        assert problem is not None
        assert problem.expected == "a list of integers >= 1 and < 5"


@pytest.mark.parametrize(
    ("schedule", "fault"),
    [
        ([[0, 1.0], [10, 0.5]], None),
        ([[0, 1.0], [10, 0.5], [5, 0.5]], "its env steps must ascend"),
        ([[0, 1.0], 7], "every item must be [env_steps, value]"),
        ([[0, -0.5]], "value -0.5 is out of range"),
    ],
)
def test_a_schedule(schedule: list[Any], fault: str | None) -> None:
    option = Option("", minimum=0, is_schedule=True)
    problem = check_value("x", schedule, float | list[list[float]], option)
    assert (problem and problem.what) == (fault and f"x is not a valid schedule: {fault}")


@pytest.mark.parametrize("annotation", [int, float, int | float])
def test_a_huge_number(annotation: Any) -> None:
    problem = check_value("x", 10**400, annotation, Option("", maximum=5))
    assert problem is not None
    assert problem.what in ("x is out of range", "x has the wrong type")


def test_long_lists_of_names_keep_the_likely_ones() -> None:
    names = [f"name_{index}" for index in range(50)] + ["target"]
    assert "target" in list_names(names, near="tarjet", limit=3)
    assert list_names(names, near="tarjet", limit=3).endswith("... (48 more)")
