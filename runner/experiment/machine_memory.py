"""Memory that is available to this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# Files of a control group with its limit and its usage, and the name of the reclaimable part of the usage.
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def available_memory(root: Path = Path("/")) -> int:
    """Return the bytes available without swapping, on the machine and in the control groups of a container.

    Args:
        root: root of the file system.
    """
    return max(0, min((_of_machine(root), *_of_groups(root))))


def _of_machine(root: Path) -> int:
    """Return the free and reclaimable memory, or all memory if the kernel does not report it."""
    return _number_in(root / "proc/meminfo", "MemAvailable:", 1024) or (
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    )


def _of_groups(root: Path) -> Iterator[int]:
    """Yield the unused part of the limit of each control group around this process."""
    for line in _text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            hierarchy, names = root / "sys/fs/cgroup", _VERSION_2
        elif "memory" in controllers.split(","):
            hierarchy, names = root / "sys/fs/cgroup/memory", _VERSION_1
        else:
            continue
        innermost = hierarchy / path.lstrip("/")
        # In a container the path may belong to the host: skip folders that do not exist.
        for group in (innermost, *(parent for parent in innermost.parents if parent.is_relative_to(hierarchy))):
            limit, used = (_text_of(group / name).strip() for name in names[:2])
            if limit.isdigit() and used.isdigit():
                yield int(limit) - int(used) + (_number_in(group / "memory.stat", names[2]) or 0)


def _number_in(file: Path, name: str, unit: int = 1) -> int | None:
    """Return the number after a name at the beginning of a line, or None if the name is missing."""
    for line in _text_of(file).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdigit():
            return int(words[1]) * unit
    return None


def _text_of(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
