"""Where a shard of a replay buffer lives: in this process or in a Ray actor, behind one interface.

Calls of a shard run in the order in which they are made, so that a run gives the same numbers with both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from runner.config.errors import RunnerError
from runner.creation_failures import creation_failure
from runner.interrupts import Interrupted, is_interrupted
from runner.replay.prioritized_replay_buffer import PrioritizedReplayBuffer
from runner.segments import Segment, SegmentFile

MakeBuffer = Callable[[], PrioritizedReplayBuffer]
Answer = Callable[[], Any]

# Calls of an actor that may wait before the caller does.
_MOST_WAITING = 4
_LOOK_UP_S = 0.2


class ShardLost(Exception):
    """The process of a shard is gone, with its experiences."""


class Shard(Protocol):
    """Calls methods of one buffer."""

    def call(self, method: str, *arguments: Any) -> Answer:
        """Start a call, and return what waits for its answer; that raises `ShardLost`."""

    def close(self) -> None:
        """Free the buffer."""


class LocalShard:
    """A buffer in this process; calls run at once."""

    def __init__(self, make_buffer: MakeBuffer) -> None:
        self._shard = _ReplayShard(make_buffer)

    def call(self, method: str, *arguments: Any) -> Answer:
        """Run the call."""
        answer = self._shard.call(method, *arguments)
        return lambda: answer

    def close(self) -> None:
        """Nothing is to be freed."""


class RemoteShard:
    """A buffer in a Ray actor, which asks for no CPU: it waits most of the time.

    A caller that is ahead by several calls waits for the oldest one.
    """

    def __init__(self, make_buffer: MakeBuffer) -> None:
        self._make_buffer = make_buffer
        self._start()

    def _start(self) -> None:
        import ray

        self._actor: Any = ray.remote(_ReplayShard).options(num_cpus=0).remote(self._make_buffer)
        self._waiting: deque[Answer] = deque()

    def call(self, method: str, *arguments: Any) -> Answer:
        """Send the call to the actor."""
        answer = partial(self._receive, self._actor.call.remote(method, *arguments))
        self._waiting.append(answer)
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.popleft()()
        return answer

    def _receive(self, reference: Any) -> Any:
        import ray

        try:
            while not ray.wait([reference], timeout=_LOOK_UP_S)[0]:
                if is_interrupted():
                    raise Interrupted
            return ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, RunnerError):
                raise error.cause from None
            raise
        except ray.exceptions.RayError as error:
            if getattr(error, "actor_init_failed", False):
                raise creation_failure(error, "a replay shard cannot be made") from error
            raise ShardLost(f"is gone ({type(error).__name__})") from error

    def close(self) -> None:
        """End the actor."""
        import ray

        ray.kill(self._actor)


class _ReplayShard:
    """The buffer behind `call`."""

    def __init__(self, make_buffer: MakeBuffer) -> None:
        self._buffer = make_buffer()

    def call(self, method: str, *arguments: Any) -> Any:
        """Return what a method returns, or an attribute."""
        if method == "get_state":
            return with_values(self._buffer.get_state(*arguments))
        attribute = getattr(self._buffer, method)
        return attribute(*arguments) if callable(attribute) else attribute

    def snapshot(self) -> tuple[bool, Any]:
        """Return true, by which it is known to have been made, and the state."""
        return True, self.call("get_state")


def with_values(state: Any) -> Any:
    """Return a state whose segments hold their values, so that it can be sent."""
    if isinstance(state, Segment):
        return Segment(SegmentFile(), partial(_itself, state.values()))
    if isinstance(state, Mapping):
        return {name: with_values(value) for name, value in state.items()}
    return [with_values(value) for value in state] if isinstance(state, (list, tuple)) else state


def _itself(values: Any) -> Any:
    return values
