"""Graceful shutdown by Ctrl-C, SIGTERM, a closed terminal or a time budget; a second signal exits immediately."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_HANGUP = "SIGHUP"
_STANDARD_OUTPUTS = (1, 2)

# Seconds after a requested stop before the run stops within a long iteration.
PATIENCE_S = 5.0

# Seconds after a requested stop before an evaluation is aborted. A resumed run repeats it from its start.
EVALUATION_PATIENCE_S = 2.0

# (reason, time of the request), the first one first.
_reasons: list[tuple[str, float]] = []
_budgets: list[Budget] = []
_conditions: list[Callable[[], str | None]] = []
_num_open = 0  # blocks of `interrupts` and `within`


class Interrupted(Exception):
    """A long wait was aborted because a stop was requested; its text is the reason."""

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason or reason_to_end() or "a request to stop")


class PartialIteration(Interrupted):
    """An iteration was stopped between two steps of its plan; a checkpoint contains the completed steps."""


class Budget:
    """A time limit of a command.

    Args:
        text: the budget as the user wrote it, for messages.
        seconds: duration from now.

    Attributes:
        has_ended_it: whether the budget has stopped the command.
    """

    def __init__(self, text: str, seconds: float) -> None:
        self.reason = f"budget of {text} used up"
        self.has_ended_it = False
        self._ends_s = time.monotonic() + seconds

    @property
    def is_used_up(self) -> bool:
        """Whether the time is used up."""
        return time.monotonic() >= self._ends_s


def reason_to_end() -> str | None:
    """Return the first reason to stop in a block of `interrupts` or `within`, or None."""
    for budget in _budgets:
        if not _reasons and budget.is_used_up:
            budget.has_ended_it = True
            _add_reason(budget.reason)
    if _num_open and not _reasons and (reason := next(filter(None, (look() for look in _conditions)), None)):
        _add_reason(reason)
    return _reasons[0][0] if _reasons else None


def is_interrupted() -> bool:
    """Return whether there is a reason to stop."""
    return reason_to_end() is not None


def is_overdue(patience_s: float = PATIENCE_S) -> bool:
    """Return whether a reason to stop has existed for more than `patience_s` seconds."""
    return reason_to_end() is not None and time.monotonic() - _reasons[0][1] > patience_s


def end_overdue_evaluation() -> None:
    """Raise `Interrupted` if a stop was requested more than `EVALUATION_PATIENCE_S` ago; call it between two steps."""
    if is_overdue(EVALUATION_PATIENCE_S):
        raise Interrupted


def request_end(reason: str) -> None:
    """Add a reason to stop, if there is none yet; it has no effect outside `interrupts` and `within`."""
    if _num_open and not _reasons:
        _add_reason(reason)


def _add_reason(reason: str) -> None:
    _reasons.append((reason, time.monotonic()))


@contextmanager
def _open() -> Iterator[None]:
    """Collect reasons in this context; clear them before and after."""
    global _num_open
    _reasons.clear()
    _num_open += 1
    try:
        yield
    finally:
        _num_open -= 1
        _reasons.clear()


@contextmanager
def also_ended_by(look: Callable[[], str | None]) -> Iterator[None]:
    """Within this context, also call `look` for a reason to stop; None means that there is no reason."""
    _conditions.append(look)
    try:
        yield
    finally:
        _conditions.remove(look)


@contextmanager
def interrupts() -> Iterator[None]:
    """Treat SIGINT, SIGTERM and SIGHUP as reasons to stop; a second SIGINT or SIGTERM raises KeyboardInterrupt.

    A terminal that closes sends SIGHUP, and its shell sends another one: SIGHUP never counts as a second signal. A
    process that starts with SIGHUP ignored (`nohup`) keeps ignoring it.
    """
    received: list[str] = []

    def handle(number: int, _frame: object) -> None:
        name = signal.Signals(number).name
        if name == _HANGUP:
            _leave_closed_terminal()
        elif received:
            raise KeyboardInterrupt
        else:
            received.append(name)
        _add_reason(name)

    before = {}
    with _open():
        with suppress(ValueError):  # not in the main thread, where the caller handles signals
            for number in _signals_that_end():
                before[number] = signal.signal(number, handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _signals_that_end() -> list[signal.Signals]:
    numbers = [signal.SIGINT, signal.SIGTERM]
    hangup: signal.Signals | None = getattr(signal, _HANGUP, None)  # missing on Windows
    if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:
        numbers.append(hangup)
    return numbers


def _leave_closed_terminal() -> None:
    """Redirect output to nowhere after the terminal was closed, because writing would raise errors, also at exit."""
    for descriptor in _STANDARD_OUTPUTS:
        poll = select.poll()
        poll.register(descriptor, 0)
        if any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0)):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


@contextmanager
def within(budget: Budget | None) -> Iterator[None]:
    """Treat the end of a budget in this block as a reason to stop; None means no limit."""
    _budgets.extend([] if budget is None else [budget])
    try:
        with _open():
            yield
    finally:
        _budgets.clear()
