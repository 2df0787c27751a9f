"""The mutations of `mutants.toml`: one line each, and the tests that must fail with it."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("mutants.toml")


class TableError(Exception):
    """A mutation does not fit the tree."""


@dataclass(frozen=True)
class Mutant:
    """A mistake of one line.

    Attributes:
        number: from 1, its place in the table.
        says: the mistake in words.
        path: file, relative to the root of the tree.
        old: a line of it without its indentation; it is found exactly once.
        new: the line in its place.
        killed_by: tests (`FILE::NAME`) of which at least one must fail.
    """

    number: int
    says: str
    path: str
    old: str
    new: str
    killed_by: tuple[str, ...]

    def apply(self, root: Path) -> str:
        """Return the text of the file with the mutation.

        Raises:
            TableError: the file is missing, or the old line is not found exactly once.
        """
        file = root / self.path
        if not file.is_file():
            raise TableError(f"mutant {self.number}: there is no {self.path}")
        lines = file.read_text(encoding="utf-8").split("\n")
        places = [place for place, line in enumerate(lines) if line.strip() == self.old]
        if len(places) != 1:
            raise TableError(f"mutant {self.number}: {self.path} has this line {len(places)} times: {self.old}")
        (place,) = places
        indentation = lines[place][: -len(self.old)]
        lines[place] = indentation + self.new
        return "\n".join(lines)


def read_mutants(path: Path = TABLE) -> list[Mutant]:
    """Return the mutations of a table in their order."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(number, **{**row, "killed_by": tuple(row["killed_by"])}) for number, row in enumerate(rows, start=1)]


def markdown(mutants: Sequence[Mutant]) -> str:
    """Return the table of `tests/README.md`."""
    lines = ["| | mutation | killed by |", "| --- | --- | --- |"]
    lines += [
        f"| {one.number} | `{one.path}`: {one.says} | {', '.join(f'`{test}`' for test in one.killed_by)} |"
        for one in mutants
    ]
    return "\n".join(lines)
