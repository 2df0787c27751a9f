"""The outcomes of a run's tasks so far, which the rules of a curriculum read."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass
class TaskRecord:
    """Results of the episodes of one task.

    Attributes:
        newest: values of the newest episodes, at most `curriculum.window`.
        num_episodes: number of episodes so far.
        last: number of its last episode, counted over all tasks from 1; 0 before the first episode.
        best: the largest value, or None before the first episode.
        fast, slow: moving averages of the values.
    """

    newest: deque[float]
    num_episodes: int = 0
    last: int = 0
    best: float | None = None
    fast: float = 0.0
    slow: float = 0.0

    @property
    def mean(self) -> float | None:
        """Mean value of the newest episodes, or None before the first episode."""
        return sum(self.newest) / len(self.newest) if self.newest else None


@dataclass
class Progress:
    """The state that the rules read.

    Attributes:
        records: task -> its record, from the easiest task to the hardest.
        promoted: index of the newest promoted task.
        num_episodes: number of episodes of all tasks.
    """

    records: dict[str, TaskRecord]
    promoted: int = 0
    num_episodes: int = 0
