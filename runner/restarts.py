"""Limits the restarts of dead processes in a run."""

from __future__ import annotations

import logging

from runner.compat.ray_cluster import lost_process
from runner.config.errors import Problem, RunFailure

_MOST_DEATHS_IN_A_ROW = 3

_log = logging.getLogger(__name__)


class ActorDied(Exception):
    """An actor died or stayed silent, and can be replaced. The message names its role, index and node."""


class PeerDied(ActorDied):
    """An actor cannot finish its call because another actor that it depends on died."""


class Restarts:
    """Counts restarts up to a limit.

    Args:
        most: largest number of restarts; 0 means none.
        keys: options that set the limit, for the message.

    Attributes:
        count: restarts so far, including those before a resume.
    """

    def __init__(self, most: int, keys: str) -> None:
        self._most = most
        self._keys = keys
        self.count = 0

    @property
    def are_off(self) -> bool:
        """Whether restarts are disabled."""
        return self._most == 0

    @property
    def are_used_up(self) -> bool:
        """Whether the limit of restarts is reached."""
        return self.count >= self._most

    def add(self, death: str, deaths_in_a_row: int) -> None:
        """Count one more restart.

        Args:
            death: the actor that died, and how.
            deaths_in_a_row: deaths in a row, including this one.

        Raises:
            RunFailure: the limit is reached, or Ray has ended as well.
        """
        of_ray = lost_process()
        if of_ray is not None:
            raise RunFailure(Problem(f"{death}, and {of_ray} has ended"))
        reason = self._reason_to_reject(deaths_in_a_row)
        if reason is not None:
            raise RunFailure(Problem(f"{death}, and {reason}", where=self._keys))
        self.count += 1
        _log.warning("%s: starting it again", death)

    def _reason_to_reject(self, deaths_in_a_row: int) -> str | None:
        if self.are_off:
            return "restarts are disabled"
        if self.are_used_up:
            if self.count == 1:
                return "the only allowed restart has been used"
            return f"all {self.count} allowed restarts have been used"
        if deaths_in_a_row > _MOST_DEATHS_IN_A_ROW:
            return f"it died {deaths_in_a_row} times in a row"
        return None
