"""Rows in memory that processes of one machine share: an unnamed file, which children inherit."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any

import numpy as np

from runner.episodes import nested
from runner.episodes.columns import Column

_ALIGNMENT = 64  # bytes


def open_memory(like: Column) -> int:
    """Return the descriptor of memory for such arrays; close it at the end."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("runner")
    else:
        with tempfile.TemporaryFile() as unnamed:
            file = os.dup(unnamed.fileno())
    os.ftruncate(file, _size_of(like))
    return file


def map_rows(file: int, like: Column) -> Column:
    """Return such arrays in the shared memory."""
    memory, offset = mmap.mmap(file, _size_of(like)), 0

    def mapped(leaf: Any) -> Any:
        nonlocal offset
        array = np.frombuffer(memory, leaf.dtype, leaf.size, offset).reshape(leaf.shape)
        offset += _padded(leaf)
        return array

    return nested.map_leaves(mapped, like)


def _size_of(like: Column) -> int:
    return max(1, sum(map(_padded, nested.leaves(like))))


def _padded(leaf: Any) -> int:
    return -(-int(leaf.nbytes) // _ALIGNMENT) * _ALIGNMENT
