"""Errors of the file system as problems that a person can act on."""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from pathlib import Path

from runner.config.errors import Problem

_FULL = ("the disk is full", "room on it; then `resume` goes on from the last checkpoint")
_READ_ONLY = ("the file system is read-only", "a file system that can be written; `mount` says why it is not")
_FORBIDDEN = ("permission denied", "permission to write there")
_BROKEN = ("the disk or its connection fails", "a look at the system's log (`dmesg`); copy the files elsewhere")
_FAULTS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: ("the quota of this user is used up", "a larger quota, or fewer files; then `resume` goes on"),
    errno.EFBIG: ("the file is larger than is allowed", "a higher limit: `ulimit -f` shows it"),
    errno.EROFS: _READ_ONLY,
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.ESTALE: ("the server no longer knows the folder", "a folder that stays until the end"),
    errno.EIO: _BROKEN,
    errno.EMFILE: ("this process has too many open files", "a higher limit: `ulimit -n` shows it"),
    errno.ENFILE: ("this machine has too many open files", "fewer of them, or a higher limit: fs.file-max"),
}


def describe_file_fault(error: OSError, folder: Path, title: str) -> Problem:
    """Describe the fault and its remedy.

    Args:
        error: raised where a file was written.
        folder: of the file.
        title: of the writer.
    """
    reason = f"{type(error).__name__}: {error}"
    what, expected = _FAULTS.get(error.errno or 0, (reason, None))
    return Problem(
        f"a file of {title} cannot be written: {what}",
        where=f"{folder}{_room_text(folder) if error.errno == errno.ENOSPC else ''}",
        got=None if what == reason else reason,
        expected=expected,
    )


def _room_text(folder: Path) -> str:
    with suppress(OSError):
        usage = shutil.disk_usage(folder)
        return f", {usage.free / 1e6:,.1f} of {usage.total / 1e6:,.1f} MB free"
    return ""
