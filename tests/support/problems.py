"""Read the problems of an error message back into their fields, so that tests compare fields and not the rendering."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from runner.config.errors import ConfigError, Problem, RunFailure, list_names
from tests.conftest import portable

_START = re.compile(r"(?:\d+\. )(?=\S)")
_DETAIL = re.compile(r" {3}(where|got|expected|did you mean|fix)\b *")


def problems_in(text: str) -> list[Problem]:
    """Return the problems of a rendered message; the line breaks of long fields become spaces.

    Args:
        text: a heading such as "N problems in the configuration" and numbered paragraphs, or one paragraph without a
            number.
    """
    fields: list[dict[str, str]] = []
    name = ""
    for line in text.splitlines():
        detail = _DETAIL.match(line)
        if detail and fields:
            name = "nearest" if detail[1] == "did you mean" else detail[1]
            fields[-1][name] = line[detail.end() :]
        elif line.startswith("   ") and fields:
            fields[-1][name] += f" {line.strip()}"
        elif start := _START.match(line):
            name = "what"
            fields.append({name: line[start.end() :]})
        elif line and not re.match(r"\d+ problems? in the [a-z ]+", line):
            if name == "what" and fields and len(fields[-1]) == 1:  # a long first line of a problem without a number
                fields[-1][name] += f" {line}"
            else:
                name = "what"
                fields.append({name: line})
    return [Problem(**each) for each in fields]


def shown_problems(shown: str | ConfigError | RunFailure, tmp_path: Path | None = None) -> list[Problem]:
    """Return the problems of a rendered message or an error, with TMP and REPOSITORY instead of these folders."""
    if isinstance(shown, str):
        problems = problems_in(shown)
    else:
        problems = list(shown.problems) if isinstance(shown, ConfigError) else [shown.problem]
    return [
        Problem(**{name: text and portable(text, tmp_path) for name, text in vars(problem).items()})
        for problem in problems
    ]


def assert_error(shown: str | ConfigError, expected: ConfigError, tmp_path: Path) -> None:
    """Compare a rendered message or an error with an error: the fields of its problems, and its heading."""
    assert shown_problems(shown, tmp_path) == [*expected.problems]
    assert portable(str(shown), tmp_path).partition("\n")[0] == str(expected).partition("\n")[0]


def raised_in(function: Callable[..., Any], text: str) -> str:
    """Return the only line of a function that contains the text, as `where` shows it: file:line and name."""
    lines, first = inspect.getsourcelines(function)
    (number,) = [first + offset for offset, line in enumerate(lines) if text in line]
    return portable(f"{inspect.getsourcefile(function)}:{number}, {function.__qualname__.replace('<locals>.', '')}")


class Including(str):
    """Equal every text that includes these parts; for long lists of names that other tests pin."""

    _parts: tuple[str, ...]

    __hash__ = str.__hash__

    def __new__(cls, *parts: str) -> Including:
        """Join the parts, as a failed comparison shows them."""
        self = super().__new__(cls, " ... ".join(parts))
        self._parts = parts
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and all(part in other for part in self._parts)

    def __ne__(self, other: object) -> bool:
        return not self == other


# Messages about fields: each wording is here only. `where` is an override of the field, unless it is given.


def _override(key: str, got: str) -> str:
    return f"override {key}=" + got.strip('"')


def out_of_range(key: str, got: str, expected: str, where: str | None = None) -> Problem:
    """Return the problem of a value outside its range."""
    return Problem(f"{key} is out of range", where or _override(key, got), got, expected)


def wrong_type(key: str, got: str, expected: str, where: str | None = None) -> Problem:
    """Return the problem of a value of another type."""
    return Problem(f"{key} has the wrong type", where or _override(key, got), got, expected)


def not_a_choice(key: str, got: str, expected: str, nearest: str | None = None, where: str | None = None) -> Problem:
    """Return the problem of a value that is not one of a few."""
    return Problem(f"{key} is not one of its choices", where or _override(key, got), got, expected, nearest)


def unknown_key(key: str, got: str, schema: type, nearest: str | None = None, where: str | None = None) -> Problem:
    """Return the problem of a key that is not a field of the schema of its block."""
    expected = list_names([field.name for field in fields(schema) if field.init], key.rpartition(".")[2], limit=60)
    return Problem(f"unknown key {key}", where or _override(key, got), got, expected, nearest)


def without_node(text: str) -> str:
    """Return the text with 10.0.0.7 for the address of the node of a dead actor."""
    return re.sub(r" on [\w.:]+ died", " on 10.0.0.7 died", text)
