"""A thread that polls the Ray cluster while this process waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LONGEST_WAIT_S = 2.0  # for the last poll, which blocks if Ray's head node is lost


@contextmanager
def polled(poll: Callable[[], bool], interval_s: float, thread_name: str) -> Iterator[None]:
    """Call `poll` every `interval_s` in a daemon thread during the block, until it returns True."""
    is_over = threading.Event()

    def poll_until_over() -> None:
        while not is_over.wait(interval_s) and not poll():
            pass

    thread = threading.Thread(target=poll_until_over, name=thread_name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(_LONGEST_WAIT_S)
