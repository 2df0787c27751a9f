"""Problems as workflow commands of GitHub Actions, which shows each beside its line of the file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from runner.config.errors import ConfigError, Problem, RunnerError
from runner.config.paths import conf_dir

_PLACE = re.compile(r"(?P<file>.+?)(?::(?P<line>\d+))?")


def error_commands(error: RunnerError) -> Iterator[str]:
    """Yield a line `::error file=...,line=...,title=...::message` for each problem; the file may be missing."""
    if not isinstance(error, ConfigError):
        yield f"::error title={_property('python -m runner')}::{_data(str(error))}"
        return
    count = len(error.problems)
    for number, problem in enumerate(error.problems, start=1):
        title = "problem in the configuration" if count == 1 else f"problem {number} of {count} in the configuration"
        place = _place(problem.where)
        listed = ",".join(f"{name}={_property(value)}" for name, value in {**place, "title": title}.items())
        yield f"::error {listed}::{_data(_message(problem, is_placed=bool(place)))}"


def _message(problem: Problem, is_placed: bool) -> str:
    where = None if is_placed else problem.where
    details = {"where": where, "got": problem.got, "allowed": problem.allowed, "nearest": problem.nearest}
    return "\n".join([problem.what, *(f"{name}: {text}" for name, text in details.items() if text is not None)])


def _place(where: str | None) -> dict[str, str]:
    """Return file and line as GitHub wants them; empty for an override."""
    match = _PLACE.fullmatch((where or "").partition("\n")[0])
    path = _find(match["file"]) if match else None
    if match is None or path is None:
        return {}
    return {"file": path, **({"line": match["line"]} if match["line"] else {})}


def _find(shown: str) -> str | None:
    """Return a file's path from the root of the checked-out repository; None where `shown` names no file."""
    path = next((path for path in (Path.cwd() / shown, conf_dir().parent / shown) if path.is_file()), None)
    root = os.environ.get("GITHUB_WORKSPACE")
    if path is None or root is None:
        return None if path is None else shown
    try:
        return path.resolve().relative_to(Path(root).resolve()).as_posix()
    except ValueError:
        return shown


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
