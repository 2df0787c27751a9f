"""A client's side of the memory that it shares with a server on the same machine (extension `shared_memory`)."""

from __future__ import annotations

import mmap
import os

# Shorter messages are as fast through the socket.
_SHORTEST = 4096
_FOLDER = "/dev/shm"


class SharedWriter:
    """Writes bodies where the server reads them.

    Args:
        name, size: of the POSIX shared memory object, as the server says.

    Raises:
        OSError: it is not on this machine.
    """

    def __init__(self, name: str, size: int) -> None:
        # Not multiprocessing's class: before Python 3.13 it removes memory that others have made.
        path = os.path.join(_FOLDER, os.path.basename(name))
        handle = os.open(path, os.O_RDWR)
        try:
            self._memory = mmap.mmap(handle, size)
        finally:
            os.close(handle)

    def write(self, body: bytes) -> bool:
        """Write a body; false if it is not worth it, or does not fit."""
        if not _SHORTEST <= len(body) <= len(self._memory):
            return False
        self._memory[: len(body)] = body
        return True

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()
