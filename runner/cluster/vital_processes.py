"""Reports when a process that Ray needs has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from runner.cluster.node_polling import polling_thread
from runner.compat.ray_cluster import lost_process

INTERVAL_S = 1.0


def deaths_reported(note: Callable[[str], None]) -> AbstractContextManager[None]:
    """Within the block, call `note` once if an essential process of a Ray cluster started by this process has ended.

    A thread polls: after such an end, calls of Ray block until Ray ends this process from inside.
    """
    return polling_thread(partial(_report_until, note=note), "ray-deaths")


def _report_until(is_over: threading.Event, note: Callable[[str], None]) -> None:
    while not is_over.wait(INTERVAL_S):
        if (lost := lost_process()) is not None:
            ends = "Ray ends this command within a minute; continue a run with resume, a sweep with the same command"
            note(f"{lost} has ended: {ends}")
            return
