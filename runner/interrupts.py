"""What ends a command early: a person's Ctrl-C or a SIGTERM (the second one at once), or its budget of time."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

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
    """SIGINT and SIGTERM in the block are reasons to end; the second one raises KeyboardInterrupt."""
    _reasons.clear()
    received: list[str] = []

    def handle(number: int, _frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(signal.Signals(number).name)
        _reasons.append(received[0])

    try:
        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: whoever runs us there handles signals
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _reasons.clear()


@contextmanager
def within(budget: Budget | None) -> Iterator[None]:
    """A budget that is used up in the block is a reason to end; None: there is none."""
    _budgets.extend([] if budget is None else [budget])
    try:
        yield
    finally:
        _budgets.clear()
        _reasons.clear()
