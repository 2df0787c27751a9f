"""Ends the remaining processes of a Ray cluster when the process that started it is gone, also by SIGKILL.

Ray ties its first processes to their parent, but not their children: agents stay for minutes, and a simulator started
by an env runner stays forever. All of them inherit a mark in their environment. A small process (`leftovers.py`,
standard library only) follows them and ends them after the end of this one.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.cluster import leftovers


class Watchdog:
    """The process that waits for the end of this one; only on Linux."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(16)
        self._process = _start(self._mark) if sys.platform == "linux" else None

    @contextmanager
    def marking(self) -> Iterator[None]:
        """Mark the processes that are started within the block, and their children."""
        os.environ[leftovers.VARIABLE] = self._mark
        try:
            yield
        finally:
            del os.environ[leftovers.VARIABLE]  # some later processes outlive this one on purpose, such as MLflow's

    def end(self) -> None:
        """End the remaining processes of the stopped cluster, in the background."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # it is gone
                self._process.stdin.close()
            threading.Thread(target=self._process.wait, name="ray-watchdog", daemon=True).start()
            self._process = None


def _start(mark: str) -> subprocess.Popen[bytes]:
    """Start the process in a new session, so that a signal to the group of this one does not reach it."""
    command = [sys.executable, "-I", "-S", str(Path(leftovers.__file__)), mark, str(os.getpid())]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
