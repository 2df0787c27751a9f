"""Says that a process has ended that Ray cannot do without."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from runner.cluster.node_polling import run_beside
from runner.compat.ray_cluster import lost_process

INTERVAL_S = 1.0


def losses_told(note: Callable[[str], None]) -> AbstractContextManager[None]:
    """Tell `note` within, once, that such a process of this process's own Ray has ended.

    A thread looks: calls of Ray wait from then on, until Ray ends this process from inside.
    """
    return run_beside(partial(_tell_until, note=note), "ray-losses")


def _tell_until(is_over: threading.Event, note: Callable[[str], None]) -> None:
    while not is_over.wait(INTERVAL_S):
        if (lost := lost_process()) is not None:
            ends = "Ray ends this command within a minute; a run goes on by resume, a sweep by the same command"
            note(f"{lost} has ended: {ends}")
            return
