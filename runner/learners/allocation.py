"""Settings of the C library's memory allocation in a process that learns."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>
_LARGEST_MMAP_THRESHOLD = 2**25  # glibc refuses more
_KEPT_BYTES = 2**28


def keep_freed_memory() -> None:
    """Let glibc keep the memory of freed tensors for the next ones, up to 256 MiB.

    By default it gives large blocks back to the kernel, and each update pays for them with page faults: a tenth to a
    third of its CPU time for batches of some hundred rows or more. On other systems than Linux this does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # other C libraries than glibc may lack it
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
