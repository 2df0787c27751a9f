"""Who may play in new episodes, and how likely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# In the place of a player: the module of a seat plays there itself, and learns from it.
ITSELF = ""


@dataclass(frozen=True)
class Lineup:
    """What env runners draw the players of each new episode from.

    One team, drawn uniformly, plays with its own modules and learns. Every other team is played by one opponent.

    Attributes:
        odds: module id of the team that learns -> module id of the other team -> player id -> probability; without an
            entry the other team plays itself, too.
        num_at_once: opponents that an env runner draws from its odds for all episodes that it begins with this lineup,
            which then draw from these uniformly; None: each episode draws from the odds.
        number: of this lineup; env runners deal anew for each.
    """

    odds: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    num_at_once: int | None = None
    number: int = 0
