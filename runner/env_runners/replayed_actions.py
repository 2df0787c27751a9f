"""The actions of a running episode, which a resumed run repeats to restore its environment."""

from __future__ import annotations

from typing import Any

from runner.episodes import nested

# Default of `env.max_replayed_steps`.
MAX_REPLAYED_STEPS = 100_000
_BLOCK = 1024


class ReplayedActions:
    """The actions since the reset, dropped once there are more than a limit.

    Args:
        limit: maximum number of actions.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.clear()

    def clear(self) -> None:
        """Begin the actions of another episode."""
        self.is_forgotten = False
        self._blocks: list[Any] = []  # stacked, because a single action takes hundreds of bytes
        self._recent: list[Any] = []
        self._num_packed = 0
        self._num_until_packed = min(_BLOCK, self._limit + 1)

    def append(self, action: Any) -> None:
        """Store the newest action."""
        if self.is_forgotten:
            return
        self._recent.append(action)
        if len(self._recent) == self._num_until_packed:
            self._pack()

    def _pack(self) -> None:
        if self._num_packed + len(self._recent) > self._limit:
            self.forget()
            return
        self._num_packed += len(self._recent)
        self._blocks.append(nested.stack(self._recent))
        self._recent = []
        self._num_until_packed = min(_BLOCK, self._limit + 1 - self._num_packed)

    def forget(self) -> None:
        """Store no actions until the next `clear`."""
        self.clear()
        self.is_forgotten = True

    def stacked(self) -> Any | None:
        """Return the actions (K, ...), or None if there are none."""
        blocks = [*self._blocks, nested.stack(self._recent)] if self._recent else self._blocks
        return nested.concatenate(blocks) if blocks else None
