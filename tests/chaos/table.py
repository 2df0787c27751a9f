"""The table of outcomes as Markdown, with one row per scenario."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HEADING = "## Fault injection"
_BEGIN, _END = "<!-- outcomes of `make chaos` -->", "<!-- end of outcomes -->"


@dataclass(frozen=True)
class Row:
    """What was injected in a scenario, and what came of it."""

    scenario: str
    injections: tuple[str, ...]
    outcome: str
    seconds: float

    def to_plain(self) -> dict[str, Any]:
        """Return plain values for a report that travels between processes."""
        return {**self.__dict__, "injections": list(self.injections)}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Row:
        """Return the row that `to_plain` gave."""
        return cls(**{**plain, "injections": tuple(plain["injections"])})

    def __str__(self) -> str:
        counted = Counter(self.injections)
        injections = "; ".join(f"{count} x {what}" if count > 1 else what for what, count in counted.items())
        cells = (self.scenario, injections, self.outcome, f"{self.seconds:.0f}")
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table_text(rows: Sequence[Row]) -> str:
    """Return the table."""
    head = "| scenario | injections | outcome | seconds |\n| --- | --- | --- | ---: |\n"
    return head + "\n".join(map(str, rows))


def write_table(path: Path, rows: Sequence[Row], seed: str) -> None:
    """Put the table into the section "Fault injection" of a document; the rest of it stays as it is.

    Raises:
        ValueError: the document has no such section with a place for the table.
    """
    text = path.read_text(encoding="utf-8")
    section = text.find(_HEADING)
    begin, end = text.find(_BEGIN, section), text.find(_END, section)
    if section < 0 or begin < 0 or end < begin:
        raise ValueError(f"{path} has no section {_HEADING!r} with {_BEGIN} and {_END}")
    table = f"{_BEGIN}\n`CHAOS_SEED={seed}`\n\n{table_text(rows)}\n"
    path.write_text(re.sub(r"\n{3,}", "\n\n", text[:begin] + table + text[end:]), encoding="utf-8")
