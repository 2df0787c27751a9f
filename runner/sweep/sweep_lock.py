"""A sweep's folder belongs to one process at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows has no locks that end with their process
    fcntl = None  # type: ignore[assignment]

_FILE = ".lock"


@contextmanager
def held(folder: Path) -> Iterator[bool]:
    """Whether the folder is this process's within; false: another process has it. A kill lets go of it."""
    if fcntl is None:
        yield True
        return
    with (folder / _FILE).open("w") as file:
        yield any(_is_locked(file, fcntl.LOCK_EX, wait_s) for wait_s in (0.0, 0.5))  # `is_held` takes it for a moment


def is_held(folder: Path) -> bool:
    """Whether a process runs the sweep of this folder."""
    if fcntl is None or not (folder / _FILE).exists():
        return False
    try:
        with (folder / _FILE).open() as file:
            return not _is_locked(file, fcntl.LOCK_SH, 0.0)
    except OSError:  # no permission to read it
        return False


def _is_locked(file: IO[str], kind: int, wait_s: float) -> bool:
    time.sleep(wait_s)
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
