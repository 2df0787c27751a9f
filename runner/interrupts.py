"""What ends a command early: Ctrl-C, SIGTERM (the second one at once), a terminal that closes, a budget of time."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_HANGUP = "SIGHUP"
_STANDARD_OUTPUTS = (1, 2)

_reasons: list[str] = []
_budgets: list[Budget] = []


class Interrupted(Exception):
    """A wait that could be long was given up because an end was asked for."""


class Budget:
    """How long a command may take.

    Args:
        text: as it was given, for messages.
        seconds: from now on.

    Attributes:
        has_ended_it: whether it was the reason for the command's end; false for a command that ended in time.
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
    """Why an end was asked for in a block of `interrupts` or of `within`; the first reason counts."""
    for budget in _budgets:
        if not _reasons and budget.is_used_up:
            budget.has_ended_it = True
            _reasons.append(budget.reason)
    return _reasons[0] if _reasons else None


def is_interrupted() -> bool:
    """Whether an end was asked for."""
    return reason_to_end() is not None


@contextmanager
def interrupts() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP in the block are reasons to end; a second SIGINT or SIGTERM raises KeyboardInterrupt.

    A terminal that closes sends SIGHUP, and its shell another one, so that they never count as a person's second
    signal. Where SIGHUP is ignored as the process starts (`nohup`) it stays so.
    """
    _reasons.clear()
    received: list[str] = []

    def handle(number: int, _frame: object) -> None:
        name = signal.Signals(number).name
        if name == _HANGUP:
            _leave_closed_terminal()
        elif received:
            raise KeyboardInterrupt
        else:
            received.append(name)
        _reasons.append(name)

    before = {}
    with suppress(ValueError):  # not in the main thread: whoever runs us there handles signals
        for number in _signals_that_end():
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _reasons.clear()


def _signals_that_end() -> list[signal.Signals]:
    numbers = [signal.SIGINT, signal.SIGTERM]
    hangup: signal.Signals | None = getattr(signal, _HANGUP, None)  # Windows has none
    if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:
        numbers.append(hangup)
    return numbers


def _leave_closed_terminal() -> None:
    """Write to nowhere what would go to a terminal that has closed: it raises errors, also as the process exits."""
    for descriptor in _STANDARD_OUTPUTS:
        poll = select.poll()
        poll.register(descriptor, 0)
        if any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0)):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


@contextmanager
def within(budget: Budget | None) -> Iterator[None]:
    """A budget that is used up in the block is a reason to end; None: there is none."""
    _budgets.extend([] if budget is None else [budget])
    try:
        yield
    finally:
        _budgets.clear()
        _reasons.clear()
