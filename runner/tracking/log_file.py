"""`runner.log` of a run."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path


@contextmanager
def logged_to_file(run_dir: Path) -> Iterator[None]:
    """Write log records of this process to `runner.log` within.

    Raises:
        OSError: it cannot be opened.
    """
    handler = _QuietFileHandler(run_dir / "runner.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("[%(asctime)s][%(name)s][%(levelname)s] - %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(min(root.level or logging.INFO, logging.INFO))
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


class _QuietFileHandler(logging.FileHandler):
    """Loses records where the disk is full: a stack trace of `logging` on the terminal would help nobody."""

    def _open(self) -> TextIOWrapper:
        return os.fdopen(_open_regular(self.baseFilename), "a", encoding=self.encoding)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Do nothing; the run says what is wrong with the disk."""

    def close(self) -> None:
        """Close the file; what is buffered may not find room."""
        try:
            super().close()
        except OSError:
            self.stream = None


def _open_regular(path: str) -> int:
    """Open a file to append to that is neither a link nor a pipe: a run dir of somebody else may hold either."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(f"{path} is a symbolic link, and none is followed") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no regular file")
    return descriptor
