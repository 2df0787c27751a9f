"""The standings of a league as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MOST_ROWS = 12


def standings_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the rows of `League.standings`; of many the best, and how many more there are."""
    titles = ("player", "elo", "95 %", "skill", "env steps")
    lines = [titles, *(_cells(row) for row in rows[:_MOST_ROWS])]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    text = [
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    ]
    more = len(rows) - _MOST_ROWS
    return "\n".join(["ratings", *(f"  {line}" for line in text), *([f"  and {more} more"] if more > 0 else [])])


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    elo, skill, steps = row["elo"], row["skill"], row["env_steps"]
    when = "fixed" if row["is_fixed"] else "now" if steps is None else f"{steps:,}"
    margin = f"±{elo['margin']:.0f}" if elo["margin"] else "anchor"
    return row["player"], f"{elo['value']:.0f}", margin, f"{skill['mu']:.1f}±{skill['sigma']:.1f}", when
