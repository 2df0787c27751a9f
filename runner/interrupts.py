"""Early ends of a command: Ctrl-C, SIGTERM (the second at once), a terminal that closes, a budget of time."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_HANGUP = "SIGHUP"
_STANDARD_OUTPUTS = (1, 2)

# Seconds after which an end that was asked for does not wait for the end of a long iteration any more.
PATIENCE_S = 5.0

# Seconds after which an evaluation that is asked to end is given up. A resumed run repeats it from its start.
EVALUATION_PATIENCE_S = 2.0

# (what it is, since when), the first one first.
_reasons: list[tuple[str, float]] = []
_budgets: list[Budget] = []
_conditions: list[Callable[[], str | None]] = []
_num_open = 0  # blocks of `interrupts` and `within`


class Interrupted(Exception):
    """A long wait was given up because somebody asked for an end."""


class PartialIteration(Interrupted):
    """An iteration was stopped between two steps of its plan; a checkpoint contains the part that is done."""


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
    if _num_open and not _reasons and (reason := next(filter(None, (look() for look in _conditions)), None)):
        _add_reason(reason)
    return _reasons[0][0] if _reasons else None


def is_interrupted() -> bool:
    """Return whether there is a reason to end."""
    return reason_to_end() is not None


def is_overdue(patience_s: float = PATIENCE_S) -> bool:
    """Return whether there has been a reason to end for more than `patience_s` seconds."""
    return reason_to_end() is not None and time.monotonic() - _reasons[0][1] > patience_s


def end_overdue_evaluation() -> None:
    """Raise `Interrupted` if an end was asked for more than `EVALUATION_PATIENCE_S` ago; call it between two steps."""
    if is_overdue(EVALUATION_PATIENCE_S):
        raise Interrupted(reason_to_end())


def _add_reason(reason: str) -> None:
    _reasons.append((reason, time.monotonic()))


@contextmanager
def _open() -> Iterator[None]:
    """Count reasons within, and forget them before and after."""
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
    """Look within, whenever somebody asks for a reason to end, for another one; None: there is none."""
    _conditions.append(look)
    try:
        yield
    finally:
        _conditions.remove(look)


@contextmanager
def interrupts() -> Iterator[None]:
    """Take SIGINT, SIGTERM and SIGHUP as reasons to end; a second SIGINT or SIGTERM raises KeyboardInterrupt.

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
        with suppress(ValueError):  # not in the main thread: whoever runs us there handles signals
            for number in _signals_that_end():
                before[number] = signal.signal(number, handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


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
        with _open():
            yield
    finally:
        _budgets.clear()
