"""Writes files that survive a power failure, and locks files for other processes."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def write_file(path: Path, content: bytes) -> str:
    """Write a file and flush it to disk; return its SHA-256."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(content).hexdigest()


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file atomically through a temporary file. Keep its mode, and follow symbolic links.

    Raises:
        OSError: the file cannot be written, or is a device or pipe, which would be replaced by a file.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "this is not a regular file", str(path))
    path = path.resolve()  # after the check: a pipe at /dev/stdout resolves to a name that does not exist
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_file(temporary, content)
        if path.exists():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    with suppress(OSError):  # folders cannot be opened on Windows
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(descriptor: int, patience_s: float) -> Iterator[bool]:
    """Lock an open file in this context, and yield whether it is locked.

    It is not locked if the file system does not support locks, or if another process holds the lock for `patience_s`.
    """
    is_locked = _lock(descriptor, patience_s)
    try:
        yield is_locked
    finally:
        if is_locked:
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _lock(descriptor: int, patience_s: float) -> bool:
    give_up_s = time.monotonic() + patience_s
    while fcntl is not None and time.monotonic() < give_up_s:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        except OSError:  # a file system without locks
            return False
        else:
            return True
    return False
