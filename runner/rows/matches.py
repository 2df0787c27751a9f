"""Matches: env episodes in which modules that learn played against players of a league."""

from __future__ import annotations

from typing import NamedTuple

LEAGUE = "league"  # name of the part that matches are reported to
WIN, DRAW, LOSS = 1.0, 0.5, 0.0


class Match(NamedTuple):
    """What one env episode says of a module that learns and one player.

    Attributes:
        module_id: of the module that learns.
        player_id: of its opponent.
        score: 1.0 the module's team has the higher return, 0.5 both have the same, 0.0 the lower one.
    """

    module_id: str
    player_id: str
    score: float
