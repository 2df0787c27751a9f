"""Matches: env episodes in which learning modules played against players of a league."""

from __future__ import annotations

from typing import NamedTuple

LEAGUE = "league"  # name of the part that matches are reported to
WIN, DRAW, LOSS = 1.0, 0.5, 0.0


class Match(NamedTuple):
    """The result of one env episode for one learning module and one player.

    Attributes:
        module_id: id of the learning module.
        player_id: id of its opponent.
        score: 1.0 if the module's team has the higher return, 0.5 for equal returns, 0.0 otherwise.
    """

    module_id: str
    player_id: str
    score: float
