"""Bodies in memory that client and server on one machine share (extension `shared_memory`)."""

from __future__ import annotations

import os
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory

from runner.compat.shared_memory import file_of
from runner.rllink.messages import MessageError


class SharedBodies:
    """The memory of one connection; the server makes and removes it.

    Its pages are allocated when a client writes them: here that would block the event loop for 9 ms a client.

    Args:
        size: in bytes.

    Raises:
        OSError: the memory cannot be made.
    """

    def __init__(self, size: int) -> None:
        self._memory = SharedMemory(create=True, size=size)
        self._file = file_of(self._memory)
        self.name, self.size = self._memory.name, size

    def read(self, length: bytes, most: int) -> bytes:
        """Copy the body at the start of the memory.

        Args:
            length: length of the body in digits.
            most: most bytes of a body.

        Raises:
            MessageError: the length is no number, or beyond the limit or the memory.
        """
        if not (length.isdigit() and length.isascii()):
            raise MessageError("bad_body", f"expected the length of a body in digits, got {length!r:.40}")
        num_bytes = int(length)
        if num_bytes > min(self.size, most):
            raise MessageError("bad_body", f"a body of {num_bytes} bytes, at most {min(self.size, most)} are allowed")
        # A read through the mapping would end this process if a client had cut the file short.
        body = os.pread(self._file, num_bytes, 0)
        if len(body) < num_bytes:
            raise MessageError("bad_body", f"the shared memory holds {len(body)} bytes, not {num_bytes}")
        return body

    def close(self) -> None:
        """Remove the memory."""
        self._memory.close()
        with suppress(FileNotFoundError):
            self._memory.unlink()
