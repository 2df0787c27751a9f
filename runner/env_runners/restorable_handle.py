"""Remote env runners that a run goes on with, when they are lost, as if they had not been."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from runner.config.errors import RunnerError
from runner.env_runners.handles import RemoteHandle, RunnerLost
from runner.env_runners.tickets import Ticket

# A snapshot costs about a tenth of a sample of CartPole, so that snapshots are less than one percent of the work.
_CALLS_PER_SNAPSHOT = 16

Announcement = tuple[Any, ...]


class RestorableHandle(RemoteHandle):
    """An env runner in a Ray actor that is restored where it is lost: a new actor takes a snapshot of its state, and is
    called again as the lost one was called since.

    What an env runner answers follows from its state and its calls, so that a run in which one is lost has the numbers
    of a run in which none is. Snapshots are in Ray's object store, where a lost node takes large ones with it.

    Args:
        arguments, options: see `RemoteHandle`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._announced: dict[str, Announcement] = {}
        self._periods = [_Period(None)]
        self._restoring: Ticket | None = None
        self._has_answered = True

    def submit(self, method: str, *args: Any) -> Ticket:
        """Send the call to the actor, and to the actors that take its place before the call is answered."""
        period = self._periods[-1]
        claim = _Claim(super().submit(method, *args), lambda ticket: self._answer_of(ticket, period))
        period.calls.append(_Call((method, *args), weakref.ref(claim)))
        if len(period.calls) == _CALLS_PER_SNAPSHOT:
            self._periods.append(_Period(super().submit("get_state"), dict(self._announced)))
        return claim

    def announce(self, subject: str, method: str, *args: Any) -> None:
        """See `RunnerHandle`."""
        super().announce(subject, method, *args)
        self._announced[subject] = (method, *args)

    def restore(self) -> bool:
        """See `RunnerHandle`; false also where nothing was answered since the last time: its calls may be fatal."""
        period = self._newest_snapshot() if self._has_answered else None
        if period is None:
            return False
        self.close()
        self._start()
        self._has_answered = False
        self._periods = [period]
        if period.snapshot is not None:
            self._restoring = super().submit("set_state", period.snapshot.result())
        for announcement in period.announced.values():
            super().submit(*announcement)
        for call in period.calls:
            ticket, claim = super().submit(*call.call), call.claim()
            if claim is not None and not claim.is_answered:
                claim.ticket = ticket
        return True

    def _newest_snapshot(self) -> _Period | None:
        """Return the period that began with the newest snapshot that there is, with all calls since."""
        calls: list[_Call] = []
        for period in reversed(self._periods):
            calls = [*period.calls, *calls]
            with suppress(RunnerLost, RunnerError):
                if period.snapshot is not None:
                    period.snapshot.result()
                return replace(period, calls=calls)
        return None

    def _answer_of(self, ticket: Ticket, period: _Period) -> Any:
        """Return an answer, and forget periods before its own: calls are in order, their snapshots are not needed."""
        answer = ticket.result()
        if self._restoring is not None:
            self._restoring.result()  # raises what `set_state` has raised
            self._restoring = None
        self._has_answered = True
        if period in self._periods:
            del self._periods[: self._periods.index(period)]
        return answer


@dataclass(eq=False)
class _Period:
    """Calls from one snapshot to the next.

    Attributes:
        snapshot: a claim to the state at the beginning; None: as the env runner is made.
        announced: the newest announcement about each subject before.
        calls: in their order, announcements among them.
    """

    snapshot: Ticket | None
    announced: dict[str, Announcement] = field(default_factory=dict)
    calls: list[_Call] = field(default_factory=list)


@dataclass(frozen=True)
class _Call:
    """The name of a method with its arguments, and who claims the answer: perhaps nobody any more."""

    call: tuple[Any, ...]
    claim: Callable[[], _Claim | None]


class _Claim:
    """A claim to the answer of whichever actor has the env runner's place.

    Args:
        ticket: of the call of the actor.
        take: waits for the answer of a ticket.
    """

    def __init__(self, ticket: Ticket, take: Callable[[Ticket], Any]) -> None:
        self.ticket = ticket
        self.is_answered = False
        self._take = take

    @property
    def reference(self) -> Any:
        return self.ticket.reference

    def is_ready(self) -> bool:
        return self.ticket.is_ready()

    def is_silent(self) -> bool:
        return self.ticket.is_silent()

    def result(self) -> Any:
        answer = self._take(self.ticket)
        self.is_answered = True
        return answer
