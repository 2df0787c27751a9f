"""The standings of a league as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MOST_SNAPSHOTS = 8


def standings_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the rows of `League.standings`; of many snapshots the best, and how many more there are."""
    titles = ("player", "elo", "95 %", "skill", "env steps")
    is_snapshot = [not row["is_fixed"] and row["env_steps"] is not None for row in rows]
    best = [place for place, one in enumerate(is_snapshot) if one][:_MOST_SNAPSHOTS]
    shown = [row for place, row in enumerate(rows) if place in best or not is_snapshot[place]]
    lines = [titles, *(_cells(row) for row in shown)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    text = [
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    ]
    more = len(rows) - len(shown)
    return "\n".join(
        ["ratings", *(f"  {line}" for line in text), *([f"  and {more} more snapshots"] if more > 0 else [])]
    )


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    elo, skill, steps = row["elo"], row["skill"], row["env_steps"]
    when = "fixed" if row["is_fixed"] else "now" if steps is None else f"{steps:,}"
    margin = f"±{elo['margin']:.0f}" if elo["margin"] else "anchor"
    return row["player"], f"{elo['value']:.0f}", margin, f"{skill['mu']:.1f}±{skill['sigma']:.1f}", when
