"""Futures: pending results of calls to actors, in this process or in Ray."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from runner.interrupts import Interrupted, PartialIteration, is_interrupted

POLL_INTERVAL_S = 0.2
UNKNOWN = object()  # the result of a call that has not been answered


class Future(Protocol):
    """The pending result of one call.

    Attributes:
        reference: Ray's reference to the result, or None if the call runs in this process.
    """

    @property
    def reference(self) -> Any: ...

    def is_ready(self) -> bool:
        """Return whether `result` would not wait, because the call has been answered or has failed."""

    def is_silent(self) -> bool:
        """Return whether the actor has been silent for so long that the call counts as failed."""

    def result(self) -> Any:
        """Wait for the result and return it; it can be requested again.

        Raises:
            ActorDied: the actor is gone, or silent for too long.
            RunnerError: the call failed, and would fail again after a restart.
        """


AnyFuture = TypeVar("AnyFuture", bound=Future)


class LocalFuture(Future):
    """A call in this process, which runs when its result, or the result of a later call, is requested.

    Args:
        call: the call; it runs once, or again if a stop interrupted it.
        queue: pending calls of the same actor, in order, or None if there are none.
    """

    reference = None

    def __init__(self, call: Callable[[], Any], queue: deque[LocalFuture] | None = None) -> None:
        self._call = call
        self._queue = deque() if queue is None else queue
        self._queue.append(self)
        self._answer: Any = UNKNOWN
        self._failure: Exception | None = None

    def is_ready(self) -> bool:
        return True

    def is_silent(self) -> bool:
        return False

    def result(self) -> Any:
        """Run the call, once, after the earlier calls, and return its result."""
        if isinstance(self._failure, Interrupted):  # the run continues after a stop
            self._failure = None
            self._queue.appendleft(self)
        while self._answer is UNKNOWN and self._failure is None:
            self._queue.popleft()._run()
        if self._failure is not None:
            raise self._failure
        return self._answer

    def _run(self) -> None:
        try:
            self._answer = self._call()
        except Exception as failure:  # raised when this result is requested, not a later one
            self._failure = failure


class FutureAfterCalls(Future):
    """A call that follows others of the same actor. Its `result` raises an error of these calls first.

    Args:
        earlier: the other calls, whose results are not used.
        future: the call.
    """

    def __init__(self, earlier: Sequence[Future], future: Future) -> None:
        self._earlier, self._future = earlier, future

    @property
    def reference(self) -> Any:
        return self._future.reference

    def is_ready(self) -> bool:
        return self._future.is_ready()

    def is_silent(self) -> bool:
        return self._future.is_silent()

    def result(self) -> Any:
        """Return the result of the call; raises the first error of the earlier calls."""
        for future in self._earlier:
            future.result()
        return self._future.result()


def ready(futures: Sequence[AnyFuture]) -> Iterator[AnyFuture]:
    """Yield the futures that are ready, in order; a single call of `ray.wait` for all of them is much cheaper."""
    references = [future.reference for future in futures if future.reference is not None]
    answered = set()
    if references:
        import ray

        answered = set(ray.wait(references, num_returns=len(references), timeout=0)[0])
    for future in futures:
        may_be_ready = future.reference is None or future.reference in answered or future.is_silent()
        if may_be_ready and future.is_ready():
            yield future


def wait_any(futures: Sequence[Future]) -> int:
    """Wait until one of the futures is ready; return the index of the first ready one.

    Raises:
        PartialIteration: the run was asked to end; the futures keep their results.
    """
    while True:
        for future in ready(futures):
            return futures.index(future)
        if is_interrupted():
            raise PartialIteration
        wait_a_moment(futures)


def wait_a_moment(futures: Sequence[Future]) -> None:
    """Wait for a short time, or until Ray has the result of one of these remote calls."""
    import ray

    ray.wait([future.reference for future in futures], timeout=POLL_INTERVAL_S)
