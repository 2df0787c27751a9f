"""Remote env runners that a run goes on with, when they are lost, as if they had not been."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from runner.config.errors import RunnerError
from runner.env_runners.handles import RemoteHandle, RunnerLost
from runner.env_runners.tickets import Ticket

_UNKNOWN = object()
_log = logging.getLogger(__name__)

Call = tuple[Any, ...]  # name of a method, and its arguments


class RestorableHandle(RemoteHandle):
    """An env runner in a Ray actor that is restored where it is lost: a new actor takes a snapshot of its state, and is
    called again as the lost one was called since.

    What an env runner answers follows from its state and its calls, so that a run in which one is lost has the numbers
    of a run in which none is. Snapshots are in Ray's object store, where a lost node takes large ones with it.

    Args:
        arguments: see `RemoteHandle`.
        calls_per_snapshot: calls that are repeated at most, and a few more that have not been answered.
        options: further ones of `RemoteHandle`.
    """

    def __init__(self, *arguments: Any, calls_per_snapshot: int = 16, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._calls_per_snapshot = calls_per_snapshot
        self._timeout_of_start_s = self._start_timeout_s
        self._announced: dict[str, Call] = {}
        self._periods = [_Period(None)]
        self._restoring: Ticket | None = None
        self._has_answered = True

    def submit(self, method: str, *args: Any) -> Ticket:
        """Send the call to the actor; until a later snapshot is there, also to an actor that takes its place."""
        period = self._periods[-1]
        claim = _Claim(super().submit(method, *args), lambda ticket: self._answer_of(ticket, period))
        period.calls.append(_Repeatable((method, *args), weakref.ref(claim)))
        if len(period.calls) >= self._calls_per_snapshot:
            self._periods.append(_Period(super().submit("get_state"), dict(self._announced)))
        return claim

    def announce(self, subject: str, method: str, *args: Any) -> None:
        """See `RunnerHandle`."""
        self._announced[subject] = (method, *args)  # first: a snapshot that is taken after the call does not hold it
        super().announce(subject, method, *args)

    def restore(self) -> bool:
        """See `RunnerHandle`; false also where nothing was answered since the last time: its calls may be fatal."""
        self._kill()  # one that is only silent would leave snapshots that are waited for
        period = self._newest_snapshot() if self._has_answered else None
        if period is None:
            what = "env runner %d cannot be restored: another one, with other seeds, changes the numbers of the run"
            _log.warning(what, self._index)
            return False
        self._placement.leave()
        self._start()
        self._start_timeout_s = self._timeout_of_start_s + len(period.calls) * (self._timeout_s or 0.0)
        self._has_answered = False
        self._periods = [period]
        self._restoring = None
        if period.snapshot is not None:
            self._restoring = super().submit("set_state", period.snapshot.result())
        for announcement in period.announced.values():
            super().submit(*announcement)
        for repeated in period.calls:
            ticket, claim = super().submit(*repeated.call), repeated.claim()
            if claim is not None and not claim.is_answered:
                claim.ticket = ticket
        return True

    def _newest_snapshot(self) -> _Period | None:
        """Return the period that began with the newest snapshot that there is, with all calls since."""
        calls: list[_Repeatable] = []
        for period in reversed(self._periods):
            calls = [*period.calls, *calls]
            with suppress(RunnerLost, RunnerError):
                if period.snapshot is not None:
                    period.snapshot.result()
                return replace(period, calls=calls)
        return None

    def _answer_of(self, ticket: Ticket, period: _Period) -> Any:
        """Wait for an answer, and forget periods before its own: calls are in order, their snapshots are not needed."""
        if self._restoring is not None:
            try:
                self._restoring.result()
            except RunnerError as error:
                raise RunnerLost(f"{self._index} does not take a snapshot of its own state: {error}") from error
            self._restoring = None
        answer = ticket.result()
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
    announced: dict[str, Call] = field(default_factory=dict)
    calls: list[_Repeatable] = field(default_factory=list)


@dataclass(frozen=True)
class _Repeatable:
    """A call, and who claims its answer: perhaps nobody any more."""

    call: Call
    claim: Callable[[], _Claim | None]


class _Claim:
    """A claim to the answer of whichever actor has the env runner's place.

    Args:
        ticket: of the call of the actor.
        take: waits for the answer of a ticket.
    """

    def __init__(self, ticket: Ticket, take: Callable[[Ticket], Any]) -> None:
        self.ticket = ticket
        self._take = take
        self._answer: Any = _UNKNOWN

    @property
    def is_answered(self) -> bool:
        return self._answer is not _UNKNOWN

    @property
    def reference(self) -> Any:
        return self.ticket.reference

    def is_ready(self) -> bool:
        return self.is_answered or self.ticket.is_ready()

    def is_silent(self) -> bool:
        return not self.is_answered and self.ticket.is_silent()

    def result(self) -> Any:
        if not self.is_answered:
            self._answer = self._take(self.ticket)
        return self._answer
