"""What a person's Ctrl-C or a SIGTERM does: the first asks for an end, the second makes it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_received: list[str] = []


class Interrupted(Exception):
    """A wait that could be long was given up because an end was asked for."""


def is_interrupted() -> bool:
    """Whether an end was asked for in a block of `interrupts`."""
    return bool(_received)


@contextmanager
def interrupts() -> Iterator[list[str]]:
    """Names of SIGINT and SIGTERM received in the block; the second one raises KeyboardInterrupt."""
    _received.clear()

    def handle(number: int, _frame: object) -> None:
        if _received:
            raise KeyboardInterrupt
        _received.append(signal.Signals(number).name)

    try:
        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: whoever runs us there handles signals
        before = {}
    try:
        yield _received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _received.clear()
