"""Says that a process has ended that Ray cannot do without."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from runner.own_ray import lost_process

INTERVAL_S = 1.0


@contextmanager
def losses_told(note: Callable[[str], None]) -> Iterator[None]:
    """Tell `note` within, once, that such a process of this process's own Ray has ended.

    A thread looks: calls of Ray wait from then on, until Ray ends this process from inside.
    """
    is_over = threading.Event()
    thread = threading.Thread(target=_tell_until, args=(is_over, note), name="ray-losses", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _tell_until(is_over: threading.Event, note: Callable[[str], None]) -> None:
    while not is_over.wait(INTERVAL_S):
        if (lost := lost_process()) is not None:
            ends = "Ray ends this command within a minute; a run goes on by resume, a sweep by the same command"
            note(f"{lost} has ended: {ends}")
            return
