"""Tickets: claims to the answers of calls to env runners, wherever they live."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from runner.interrupts import Interrupted, is_interrupted

_LOOK_UP_S = 0.2
_UNKNOWN = object()


class Ticket(Protocol):
    """A claim to the answer of one call.

    Attributes:
        reference: Ray's to the answer; None where the call runs in this process.
    """

    @property
    def reference(self) -> Any: ...

    def is_ready(self) -> bool:
        """Whether `result` would not wait, because the call has been answered or has failed."""

    def is_silent(self) -> bool:
        """Whether the runner has been silent for too long, so that the call counts as failed."""

    def result(self) -> Any:
        """Wait for the answer and return it.

        Raises:
            RunnerLost: the runner is gone.
            RunnerError: the call failed in a way that a restart would not mend.
        """


AnyTicket = TypeVar("AnyTicket", bound=Ticket)


class LocalTicket:
    """A call in this process, which runs when its answer, or one of a later call, is asked for.

    Args:
        call: runs once.
        queue: calls of the same runner that have not run, in their order; None: there are no others.
    """

    reference = None

    def __init__(self, call: Callable[[], Any], queue: deque[LocalTicket] | None = None) -> None:
        self._call = call
        self._queue = deque() if queue is None else queue
        self._queue.append(self)
        self._answer: Any = _UNKNOWN
        self._failure: Exception | None = None

    def is_ready(self) -> bool:
        """Whether the call can run: always."""
        return True

    def is_silent(self) -> bool:
        """Whether the runner has been silent for too long: never."""
        return False

    def result(self) -> Any:
        """Run the call, once, after the calls before it, and return its answer."""
        while self._answer is _UNKNOWN and self._failure is None:
            self._queue.popleft()._run()
        if self._failure is not None:
            raise self._failure
        return self._answer

    def _run(self) -> None:
        try:
            self._answer = self._call()
        except Exception as failure:  # told to who asks for this answer, not for a later one
            self._failure = failure


class RemoteTicket:
    """A call of a Ray actor.

    Args:
        reference: of Ray, to the answer.
        deadline_s: returns the `time.monotonic()` after which the actor counts as silent; None: it may take its time.
        receive: (reference, whether the actor was silent for too long already) -> the answer, waited for.
    """

    def __init__(
        self, reference: Any, deadline_s: Callable[[], float | None], receive: Callable[[Any, bool], Any]
    ) -> None:
        self.reference = reference
        self._deadline_s = deadline_s
        self._receive = receive
        self._answer: Any = _UNKNOWN
        self._is_late = False

    def is_ready(self) -> bool:
        """Whether the actor has answered, is gone, or has been silent for too long."""
        import ray

        if self._answer is not _UNKNOWN or ray.wait([self.reference], timeout=0)[0]:
            return True
        self._is_late = self.is_silent()
        return self._is_late

    def is_silent(self) -> bool:
        """Whether the actor has been silent for too long."""
        deadline_s = self._deadline_s()
        return deadline_s is not None and time.monotonic() > deadline_s

    def result(self) -> Any:
        """Wait for the answer and return it."""
        if self._answer is _UNKNOWN:
            self._answer = self._receive(self.reference, self._is_late)
        return self._answer


def ready_ones(tickets: Sequence[AnyTicket]) -> Iterator[AnyTicket]:
    """Yield the tickets that are ready, in their order; Ray is asked once for all of them, which is much cheaper."""
    references = [ticket.reference for ticket in tickets if ticket.reference is not None]
    answered = set()
    if references:
        import ray

        answered = set(ray.wait(references, num_returns=len(references), timeout=0)[0])
    for ticket in tickets:
        may_be_ready = ticket.reference is None or ticket.reference in answered or ticket.is_silent()
        if may_be_ready and ticket.is_ready():
            yield ticket


def wait_any(tickets: Sequence[Ticket]) -> int:
    """Wait until one of the tickets is ready; return the number of the first that is.

    Raises:
        Interrupted: an end was asked for meanwhile.
    """
    while True:
        for ticket in ready_ones(tickets):
            return tickets.index(ticket)
        if is_interrupted():
            raise Interrupted
        wait_a_moment(tickets)


def wait_a_moment(tickets: Sequence[Ticket]) -> None:
    """Wait until Ray has the answer to one of the tickets, which are all of remote calls, but not for long."""
    import ray

    ray.wait([ticket.reference for ticket in tickets], timeout=_LOOK_UP_S)
