"""Errors of recorded files that cannot be read, with file, row and column."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.config.errors import ConfigError, Problem, UserError, render_problems

_EXTRA = "pip install -e '.[offline]'"


class DataError(ConfigError):
    """Error of recorded data that cannot be read."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(problems)
        count = f"{len(self.problems)} problem" + ("" if len(self.problems) == 1 else "s")
        text = render_problems(self.problems).partition("\n\n")[2]
        UserError.__init__(self, f"{count} in the recorded data\n\n{text}")


@dataclass(frozen=True)
class DataLocation:
    """Location in the data. Unknown attributes have the value None.

    Attributes:
        file: name of the file.
        row: number of the row (line, step, episode) in the file, from 0.
        column: name of the field.
        unit: content of a row.
        items_per_row: number of items of nested lists in a row, if `at` counts items.
    """

    file: str | None = None
    row: int | None = None
    column: str | None = None
    unit: str = "row"
    items_per_row: int = 1

    def at(self, number: int) -> DataLocation:
        """Return the location `number` rows (or items of rows) later."""
        return replace(self, row=number // self.items_per_row + (self.row or 0))

    def of(self, column: str) -> DataLocation:
        """Return the location of a column at this location."""
        return replace(self, column=column)

    def __str__(self) -> str:
        parts = [
            self.file,
            None if self.row is None else f"{self.unit} {self.row}",
            None if self.column is None else f"column {self.column}",
        ]
        return ", ".join(part for part in parts if part is not None) or "unknown"


def data_error(
    what: str,
    place: DataLocation,
    *,
    got: str | None = None,
    expected: str | None = None,
    nearest: str | None = None,
    fix: str | None = None,
) -> DataError:
    """Return the error for one problem at one location."""
    return DataError([Problem(what, where=str(place), got=got, expected=expected, nearest=nearest, fix=fix)])


def first_line(error: BaseException) -> str:
    """Return the first line of an error of another library, or the name of its class if the message is empty."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def import_extra(module: str, place: DataLocation, purpose: str) -> Any:
    """Import a module of an optional package. Raises `DataError` with the installation command if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise data_error(f"{purpose} needs the package {package}, which is not installed", place, fix=_EXTRA) from error
