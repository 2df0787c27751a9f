"""Read the problems of an error message back into their fields, so that tests compare fields and not the rendering."""

from __future__ import annotations

import re
from pathlib import Path

from runner.config.errors import ConfigError, Problem, RunFailure
from tests.conftest import portable

_START = re.compile(r"(?:\d+\. )(?=\S)")
_DETAIL = re.compile(r" {3}(where|got|allowed|nearest)\b *")


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
            name = detail[1]
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


def assert_error(shown: str | ConfigError | RunFailure, expected: ConfigError | RunFailure, tmp_path: Path) -> None:
    """Compare a rendered message or an error with an error: the fields of its problems, and its heading."""
    assert shown_problems(shown, tmp_path) == shown_problems(expected)
    assert portable(str(shown), tmp_path).partition("\n")[0] == str(expected).partition("\n")[0]
