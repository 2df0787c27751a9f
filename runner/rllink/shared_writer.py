"""A client's side of the memory that it shares with a server on the same machine (extension `shared_memory`)."""

from __future__ import annotations

import os
from contextlib import suppress

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
        self._file = os.open(path, os.O_RDWR)
        self._size = size

    def write(self, body: bytes) -> bool:
        """Write a body; false if it is not worth it, or does not fit."""
        if not _SHORTEST <= len(body) <= self._size:
            return False
        with suppress(OSError):  # no memory is left
            # Not through a mapping, where no memory ends the process.
            return os.pwrite(self._file, body, 0) == len(body)
        return False

    def close(self) -> None:
        """Let go of the memory."""
        os.close(self._file)
