"""The actions of a running episode, which a resumed run repeats to restore its environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from runner.episodes import nested
from runner.episodes.spaces import blank_item

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


def as_given(actions: Mapping[str, Any], spaces: Mapping[str, gym.Space[Any]]) -> dict[str, Any]:
    """Return the actions of one step, by agent, with the types that the environment got.

    Args:
        actions: actions from a state. A checkpoint holds numpy's numbers as Python's.
        spaces: agent id -> its action space.
    """
    return {agent: nested.map_leaves(_typed, action, blank_item(spaces[agent])) for agent, action in actions.items()}


def _typed(leaf: Any, blank: Any) -> Any:
    return leaf if isinstance(leaf, (np.ndarray, np.generic)) else np.asarray(leaf, np.asarray(blank).dtype)[()]
