"""The file of a shared memory can be read; a failure here means that Python has changed."""

from __future__ import annotations

import os
from multiprocessing.shared_memory import SharedMemory

from runner.compat.shared_memory import file_of


def test_the_file_has_what_was_written_to_the_memory() -> None:
    memory = SharedMemory(create=True, size=16)
    try:
        memory.buf[:4] = b"body"
        assert os.pread(file_of(memory), 4, 0) == b"body"
    finally:
        memory.close()
        memory.unlink()
