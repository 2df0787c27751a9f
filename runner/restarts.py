"""Limits on restarts of lost processes before a run ends."""

from __future__ import annotations

import logging

from runner.compat.ray_cluster import lost_process
from runner.config.errors import Problem, RunFailure

_MOST_LOSSES_IN_A_ROW = 3

_log = logging.getLogger(__name__)


class ActorDied(Exception):
    """An actor died or stayed silent; another one can replace it. The message names its role, index and node."""


class PeerDied(ActorDied):
    """An actor cannot finish its call, because another one that it depends on died."""


class Restarts:
    """A count of restarts, with a limit.

    Args:
        most: largest number of restarts; 0 means none.
        keys: options that decide, for the message.

    Attributes:
        count: restarts so far, also before a resume.
    """

    def __init__(self, most: int, keys: str) -> None:
        self._most = most
        self._keys = keys
        self.count = 0

    @property
    def are_off(self) -> bool:
        """Whether the first restart is refused."""
        return self._most == 0

    @property
    def are_used_up(self) -> bool:
        """Whether a further restart is refused, whatever was lost."""
        return self.count >= self._most

    def add(self, loss: str, losses_in_a_row: int) -> None:
        """Count one more restart.

        Args:
            loss: who was lost, and how.
            losses_in_a_row: deaths in a row, including this one.

        Raises:
            RunFailure: the limit is reached, or Ray has ended as well.
        """
        of_ray = lost_process()
        if of_ray is not None:
            raise RunFailure(Problem(f"{loss}, and {of_ray} has ended"))
        reason = self._reason_to_refuse(losses_in_a_row)
        if reason is not None:
            raise RunFailure(Problem(f"{loss}, and {reason}", where=self._keys))
        self.count += 1
        _log.warning("%s: starting it again", loss)

    def _reason_to_refuse(self, losses_in_a_row: int) -> str | None:
        if self.are_off:
            return "restarts are off"
        if self.are_used_up:
            return f"{self.count} restarts are used up"
        if losses_in_a_row > _MOST_LOSSES_IN_A_ROW:
            return f"it was lost {losses_in_a_row} times in a row"
        return None
