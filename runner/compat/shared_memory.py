"""A private attribute of the standard library's shared memory."""

from __future__ import annotations

from multiprocessing.shared_memory import SharedMemory


def file_of(memory: SharedMemory) -> int:
    """Return the file descriptor of a shared memory for `os.pread`; a public `SharedMemory.fileno()` would replace it.

    Checked with Python 3.11 to 3.13; not available on Windows.
    """
    descriptor: int = memory._fd  # type: ignore[attr-defined]
    return descriptor
