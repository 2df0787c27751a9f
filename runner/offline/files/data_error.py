"""The error of a recorded file that cannot be read: what is wrong, and in which file, row and column."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.config.errors import ConfigError, Problem, UserError, render_problems

_EXTRA = "pip install 'runner[offline]'"


class DataError(ConfigError):
    """Recorded data that cannot be read as what they seem to be."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(problems)
        count = f"{len(self.problems)} problem" + ("" if len(self.problems) == 1 else "s")
        text = render_problems(self.problems).partition("\n\n")[2]
        UserError.__init__(self, f"{count} in the recorded data\n\n{text}")


@dataclass(frozen=True)
class DataLocation:
    """Where in the data something is; what is unknown is None.

    Attributes:
        file: its name.
        row: number of the row (line, step, episode) in the file, from 0.
        column: the field.
        unit: what a row is.
    """

    file: str | None = None
    row: int | None = None
    column: str | None = None
    unit: str = "row"

    def at(self, row: int) -> DataLocation:
        """Return the place `row` rows further on."""
        return replace(self, row=row + (self.row or 0))

    def of(self, column: str) -> DataLocation:
        """Return the place of a column here."""
        return replace(self, column=column)

    def __str__(self) -> str:
        parts = [
            self.file,
            None if self.row is None else f"{self.unit} {self.row}",
            None if self.column is None else f"column {self.column}",
        ]
        return ", ".join(part for part in parts if part is not None) or "unknown"


def data_error(
    what: str, place: DataLocation, *, got: str | None = None, expected: str | None = None, nearest: str | None = None
) -> DataError:
    """Return the error for one problem at one place."""
    return DataError([Problem(what, where=str(place), got=got, expected=expected, nearest=nearest)])


def first_line(error: BaseException) -> str:
    """Return what an error of another library says, in one line; its class where it says nothing."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def import_extra(module: str, place: DataLocation, purpose: str) -> Any:
    """Return the optional package's module; an error that says how to install it where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise data_error(f"{purpose} needs the package {package}, which is not installed: {_EXTRA}", place) from error
