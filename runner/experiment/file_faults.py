"""Turns file system errors into problems with a fix."""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from pathlib import Path

from runner.config.errors import Problem

_FULL = ("the disk is full", "free some space; then `resume` continues from the last checkpoint")
_READ_ONLY = ("the file system is read-only", "use a writable file system; `mount` shows why this one is read-only")
_FORBIDDEN = ("permission denied", "allow this user to write there")
_BROKEN = ("the disk or its connection fails", "check the system log (`dmesg`), and copy the files elsewhere")
_FAULTS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: (
        "the disk quota of this user is used up",
        "raise the quota or delete files; then `resume` continues",
    ),
    errno.EFBIG: ("the file exceeds the allowed size", "raise the limit (see `ulimit -f`)"),
    errno.EROFS: _READ_ONLY,
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.ESTALE: ("the file server no longer knows the folder", "use a folder that exists until the run ends"),
    errno.EIO: _BROKEN,
    errno.EMFILE: ("this process has too many open files", "raise the limit (see `ulimit -n`)"),
    errno.ENFILE: ("this machine has too many open files", "close some, or raise the limit fs.file-max"),
}


def describe_file_fault(error: OSError, folder: Path) -> Problem:
    """Describe a fault and its fix.

    Args:
        error: error of writing a file.
        folder: folder of the file.
    """
    reason = f"{type(error).__name__}: {error}"
    what, fix = _FAULTS.get(error.errno or 0, (reason, None))
    return Problem(
        f"a file of the run cannot be written: {what}",
        where=f"{folder}{_space_text(folder) if error.errno == errno.ENOSPC else ''}",
        got=None if what == reason else reason,
        fix=fix,
    )


def _space_text(folder: Path) -> str:
    with suppress(OSError):
        usage = shutil.disk_usage(folder)
        return f", {usage.free / 1e6:,.1f} of {usage.total / 1e6:,.1f} MB free"
    return ""
