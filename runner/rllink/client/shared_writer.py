"""A client's side of the memory that it shares with a server on the same machine (extension `shared_memory`)."""

from __future__ import annotations

import os
from contextlib import suppress

# Shorter messages are as fast through the socket.
_SHORTEST = 4096
_FOLDER = "/dev/shm"


class SharedWriter:
    """Writes bodies into the memory from which the server reads them.

    Args:
        name, size: name and bytes of the POSIX shared memory object, as the server says.

    Raises:
        OSError: the memory is not on this machine.
    """

    def __init__(self, name: str, size: int) -> None:
        # The class of multiprocessing removes memory of other processes before Python 3.13.
        path = os.path.join(_FOLDER, os.path.basename(name))
        self._file = os.open(path, os.O_RDWR)
        self._size = size

    def write(self, body: bytes) -> bool:
        """Write a body; return false if it is too short to be worth it, or does not fit."""
        if not _SHORTEST <= len(body) <= self._size:
            return False
        with suppress(OSError):  # the machine is out of memory
            # A write through a mapping would end the process when memory is out.
            return os.pwrite(self._file, body, 0) == len(body)
        return False

    def close(self) -> None:
        """Close the memory."""
        os.close(self._file)
