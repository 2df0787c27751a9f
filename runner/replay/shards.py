"""Shards of a replay buffer, and calls of their methods.

Calls of a shard run in the order in which they are made, so a run's numbers do not depend on where its shards are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from runner.replay.prioritized_replay_buffer import PrioritizedReplayBuffer
from runner.restarts import Restarts
from runner.segments import Segment, SegmentFile


class Answer(Protocol):
    """The pending result of a call."""

    def result(self) -> Any:
        """Wait for the result and return it; raises `ActorDied` if the shard's process has died."""


class ShardCalls(Protocol):
    """Calls methods of shards.

    Attributes:
        restarts: counts the shards whose process died.
    """

    restarts: Restarts

    def submit(self, index: int, method: str, *arguments: Any) -> Answer:
        """Call a method or read an attribute of one shard.

        Raises:
            ActorDied: the process of the shard has died, and an empty shard has replaced it.
        """

    def abandon(self) -> None:
        """Free the shards."""


class ReplayShard(PrioritizedReplayBuffer):
    """A shard, whose state can be sent to another process."""

    def get_state(self, has_experiences: bool = True) -> dict[str, Any]:
        """Return the state; see `ReplayBuffer`."""
        state: dict[str, Any] = with_values(super().get_state(has_experiences))
        return state


# (index, generation) -> a shard
MakeShard = Callable[[int, int], ReplayShard]
# (makes a shard, number of shards) -> calls of the shards
MakeShards = Callable[[MakeShard, int], ShardCalls]


@dataclass(frozen=True)
class KnownAnswer:
    """An answer that is already known."""

    answer: Any

    def result(self) -> Any:
        """Return the answer."""
        return self.answer


class LocalShards:
    """Shards in this process. Calls run immediately, because the caller may change the arguments afterwards.

    Args:
        make_shard: makes one shard.
        num_shards: number of shards.
    """

    def __init__(self, make_shard: MakeShard, num_shards: int) -> None:
        self.restarts = Restarts(0, "")  # this process does not outlive its shards
        self._shards = [make_shard(index, 0) for index in range(num_shards)]

    def submit(self, index: int, method: str, *arguments: Any) -> Answer:
        """Run the call."""
        attribute = getattr(self._shards[index], method)
        return KnownAnswer(attribute(*arguments) if callable(attribute) else attribute)

    def abandon(self) -> None:
        """Do nothing: the shards are freed with this object."""


def with_values(state: Any) -> Any:
    """Return a state whose segments contain their values, so that it can be sent."""
    if isinstance(state, Segment):
        return Segment(SegmentFile(), partial(_itself, state.values()))
    if isinstance(state, Mapping):
        return {name: with_values(value) for name, value in state.items()}
    return [with_values(value) for value in state] if isinstance(state, (list, tuple)) else state


def _itself(values: Any) -> Any:
    return values
