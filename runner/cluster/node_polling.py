"""A thread that polls the Ray cluster while this process waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def polling_thread(look: Callable[[threading.Event], None], thread_name: str) -> Iterator[None]:
    """Run `look(is_over)` in a daemon thread during the block; at its end set `is_over`, and join the thread."""
    is_over = threading.Event()
    thread = threading.Thread(target=look, args=(is_over,), name=thread_name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
