"""The matches in the episodes of an env runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from runner.env_runners.listeners import EpisodeListener, IntArray, VectorStep
from runner.league.matches import LEAGUE, Match
from runner.league.opponent_environments import OpponentEnvironments
from runner.rows.finished_episodes import FinishedEpisodes


class MatchListener(EpisodeListener):
    """Keeps the matches of finished env episodes until a sample or an evaluation is complete.

    Args:
        envs: the sub-environments of the env runner.
    """

    def __init__(self, envs: OpponentEnvironments) -> None:
        self._envs = envs
        self.begin()

    @property
    def receivers(self) -> Mapping[str, Callable[..., None]]:
        """`player` receives id and policy files of a player; `lineup` receives the odds of players in new episodes."""
        return {"player": self._envs.add_player, "lineup": self._envs.use_lineup}

    def begin(self) -> None:
        """Forget all episodes."""
        self._ended: list[tuple[Match, ...]] = []

    def on_step(self, step: VectorStep) -> None:
        """Note the matches of episodes that have ended."""
        self._ended += [self._envs.matches_of(n) for n in np.flatnonzero(step.is_done).tolist()]

    def complete(self, finished: FinishedEpisodes, counted: IntArray | None) -> FinishedEpisodes:
        """Add the matches."""
        ended = self._ended if counted is None else [self._ended[place] for place in counted]
        self.begin()
        matches = tuple(match for of_one in ended for match in of_one)
        return replace(finished, outcomes={**finished.outcomes, LEAGUE: matches})
