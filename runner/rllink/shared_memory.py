"""Bodies in memory that client and server on one machine share (extension `shared_memory`)."""

from __future__ import annotations

import os
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory

from runner.rllink.messages import MessageError


class SharedBodies:
    """The memory of one connection; the server makes and removes it.

    Its pages are taken when a client writes them: reserving them here would hold the event loop up, at 9 ms a client.

    Args:
        size: in bytes.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, size: int) -> None:
        self._memory = SharedMemory(create=True, size=size)
        self._file: int = self._memory._fd  # type: ignore[attr-defined]
        self.name, self.size = self._memory.name, size

    def read(self, length: bytes, most: int) -> bytes:
        """A copy of the body that lies at the start.

        Args:
            length: of the body, in digits.
            most: bytes that a body may have.

        Raises:
            MessageError: it cannot be so long.
        """
        if not (length.isdigit() and length.isascii()):
            raise MessageError("bad_body", f"expected the length of a body in digits, got {length!r:.40}")
        num_bytes = int(length)
        if num_bytes > min(self.size, most):
            raise MessageError("bad_body", f"a body of {num_bytes} bytes, at most {min(self.size, most)} are allowed")
        # Not through the mapping: a client that has cut the file short would end this process.
        body = os.pread(self._file, num_bytes, 0)
        if len(body) < num_bytes:
            raise MessageError("bad_body", f"the shared memory holds {len(body)} bytes, not {num_bytes}")
        return body

    def close(self) -> None:
        """Remove the memory."""
        self._memory.close()
        with suppress(FileNotFoundError):
            self._memory.unlink()
