"""Memory that this process can still take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# Of a control group: names of the files with its limit and its use, and of the use that the kernel can take back.
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def available_memory(root: Path = Path("/")) -> int:
    """Return how many bytes can be taken without swapping: of the machine, and of the control groups of a container.

    Args:
        root: of the file system.
    """
    return max(0, min((_of_machine(root), *_of_groups(root))))


def _of_machine(root: Path) -> int:
    """Return the free memory with what the kernel can take back; where it is not told, all memory."""
    return _number_in(root / "proc/meminfo", "MemAvailable:", 1024) or (
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    )


def _of_groups(root: Path) -> Iterator[int]:
    """Yield what each control group around this process leaves of its limit."""
    for line in _text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            hierarchy, names = root / "sys/fs/cgroup", _VERSION_2
        elif "memory" in controllers.split(","):
            hierarchy, names = root / "sys/fs/cgroup/memory", _VERSION_1
        else:
            continue
        innermost = hierarchy / path.lstrip("/")
        # Within a container the path may be of the machine outside: folders that are not there tell nothing.
        for group in (innermost, *(parent for parent in innermost.parents if parent.is_relative_to(hierarchy))):
            limit, used = (_text_of(group / name).strip() for name in names[:2])
            if limit.isdigit() and used.isdigit():
                yield int(limit) - int(used) + (_number_in(group / "memory.stat", names[2]) or 0)


def _number_in(file: Path, name: str, unit: int = 1) -> int | None:
    """Return the number behind a name at the beginning of a line; None where it is not there."""
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
