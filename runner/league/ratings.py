"""Ratings of the players of a league from the games between them, and the standings as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

# A lead of 400 points means ten times more wins than losses.
POINTS_PER_NAT = 400 / np.log(10)
BASE = 1000.0
# Prior of the differences between players; without it, a player who won all of three games would be infinitely strong.
_PRIOR_DEVIATION = 400.0 / POINTS_PER_NAT
_STEP_DEVIATION = 200.0 / POINTS_PER_NAT  # prior of the progress of a module between two snapshots
_QUANTILE = 1.959963984540054  # of a normal distribution, for 95 %
_MOST_STEPS, _TOLERANCE = 100, 1e-9

Numbers = npt.NDArray[np.float64]
# a -> b -> wins, draws and losses of a against b.
Games = Mapping[str, Mapping[str, Sequence[float]]]


@dataclass(frozen=True)
class Rating:
    """A rating and half the width of its 95 % interval."""

    value: float
    margin: float


def elo_ratings(
    games: Games, players: Sequence[str], follows: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Rating]:
    """Fit Elo's model to all games together: a beats b with probability 1 / (1 + 10^((R_b - R_a) / 400)).

    The ratings maximise the posterior of Bradley and Terry's model (1952, https://doi.org/10.2307/2334029); a draw
    counts as half a win for each. The prior is normal. Its deviation is 200 points around the previous snapshot
    (Coulom, 2008, https://doi.org/10.1007/978-3-540-87608-3_11), and 400 points around 1000 for the first one.
    Intervals come from the curvature of the posterior. The first player is the anchor with 1000 points and no interval.

    Args:
        games: each pair in one direction or both, each game once.
        players: ids of all players.
        follows: player -> its previous snapshot.
    """
    place = {player: number for number, player in enumerate(players)}
    scores = np.zeros((len(players), len(players)))  # of the row's player against the column's
    for player, against in games.items():
        for other, (wins, draws, losses) in against.items():
            if player in place and other in place:
                scores[place[player], place[other]] += wins + draws / 2
                scores[place[other], place[player]] += losses + draws / 2
    base = np.full(len(players), _PRIOR_DEVIATION**-2)  # precision of the prior of each, and of differences
    ties = np.zeros_like(scores)
    for player, before in follows.items():
        base[place[player]] = 0.0
        ties[place[player], place[before]] = ties[place[before], place[player]] = _STEP_DEVIATION**-2
    logits = np.zeros(len(players))
    free = np.arange(len(players)) > 0
    curvature = np.eye(len(players))
    for _ in range(_MOST_STEPS):
        gradient, curvature = _derivatives(logits, scores, base, ties)
        step = np.zeros(len(players))
        step[free] = np.linalg.solve(curvature[np.ix_(free, free)], gradient[free])
        logits += np.clip(step, -2.0, 2.0)  # far from the solution Newton's steps are too long
        if np.max(np.abs(step), initial=0.0) < _TOLERANCE:
            break
    variances = np.zeros(len(players))
    variances[free] = np.diag(np.linalg.inv(curvature[np.ix_(free, free)]))
    margins = _QUANTILE * np.sqrt(variances) * POINTS_PER_NAT
    return {
        player: Rating(float(BASE + logits[number] * POINTS_PER_NAT), float(margins[number]))
        for player, number in place.items()
    }


def _derivatives(logits: Numbers, scores: Numbers, base: Numbers, ties: Numbers) -> tuple[Numbers, Numbers]:
    """Return the gradient and the negative Hessian of the log posterior."""
    leads = logits[:, None] - logits[None, :]
    expected = 1 / (1 + np.exp(-leads))
    num_games = scores + scores.T
    gradient = (scores - num_games * expected - ties * leads).sum(1) - logits * base
    weights = num_games * expected * expected.T + ties
    curvature = np.diag(weights.sum(1) + base) - weights
    return gradient, curvature


_MOST_SNAPSHOTS = 8


def standings_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the rows of `League.standings`; of many snapshots only the best, and the number of others."""
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
