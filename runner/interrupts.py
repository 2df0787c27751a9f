"""Early ends of a command: Ctrl-C, SIGTERM (the second at once), a terminal that closes, a budget of time."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_HANGUP = "SIGHUP"
_STANDARD_OUTPUTS = (1, 2)

# Seconds after which an end that was asked for does not wait for the end of a long iteration any more.
PATIENCE_S = 5.0

_reasons: list[str] = []
_asked_at: list[float] = []  # time of each reason
_budgets: list[Budget] = []


class Interrupted(Exception):
    """A long wait was given up because somebody asked for an end."""


class BrokenOff(Interrupted):
    """An iteration was given up between two steps of its plan; a checkpoint has the part that is done."""


class Budget:
    """The time that a command may take.

    Args:
        text: as it was given, for messages.
        seconds: from now on.

    Attributes:
        has_ended_it: whether the budget ended the command, which did not end in time.
    """

    def __init__(self, text: str, seconds: float) -> None:
        self.reason = f"budget of {text} used up"
        self.has_ended_it = False
        self._ends_s = time.monotonic() + seconds

    @property
    def is_used_up(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self._ends_s


def reason_to_end() -> str | None:
    """Return the first reason to end in a block of `interrupts` or `within`; None while there is none."""
    for budget in _budgets:
        if not _reasons and budget.is_used_up:
            budget.has_ended_it = True
            _add_reason(budget.reason)
    return _reasons[0] if _reasons else None


def is_interrupted() -> bool:
    """Return whether there is a reason to end."""
    return reason_to_end() is not None


def is_overdue() -> bool:
    """Return whether there has been a reason to end for more than `PATIENCE_S`."""
    return reason_to_end() is not None and time.monotonic() - _asked_at[0] > PATIENCE_S


def ask_to_end(reason: str) -> None:
    """Give a reason to end, from any thread, which counts in a block of `interrupts` or `within`."""
    _add_reason(reason)


def _add_reason(reason: str) -> None:
    _asked_at.append(time.monotonic())
    _reasons.append(reason)


def _forget_reasons() -> None:
    _reasons.clear()
    _asked_at.clear()


@contextmanager
def interrupts() -> Iterator[None]:
    """Take SIGINT, SIGTERM and SIGHUP as reasons to end; a second SIGINT or SIGTERM raises KeyboardInterrupt.

    A terminal that closes sends SIGHUP, and its shell sends another one: SIGHUP never counts as a second signal. A
    process that starts with SIGHUP ignored (`nohup`) keeps ignoring it.
    """
    _forget_reasons()
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
    with suppress(ValueError):  # not in the main thread: whoever runs us there handles signals
        for number in _signals_that_end():
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _forget_reasons()


def _signals_that_end() -> list[signal.Signals]:
    numbers = [signal.SIGINT, signal.SIGTERM]
    hangup: signal.Signals | None = getattr(signal, _HANGUP, None)  # Windows has none
    if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:
        numbers.append(hangup)
    return numbers


def _leave_closed_terminal() -> None:
    """Redirect output for a terminal that has closed to nowhere: writing would raise errors, also at exit."""
    for descriptor in _STANDARD_OUTPUTS:
        poll = select.poll()
        poll.register(descriptor, 0)
        if any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0)):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


@contextmanager
def within(budget: Budget | None) -> Iterator[None]:
    """Take the end of a budget in the block as a reason to end; None: there is no budget."""
    _budgets.extend([] if budget is None else [budget])
    try:
        yield
    finally:
        _budgets.clear()
        _forget_reasons()
