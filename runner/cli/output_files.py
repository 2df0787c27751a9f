"""Files that a command writes: a check before any work, and writing."""

from __future__ import annotations

import os
from pathlib import Path

from runner.config.errors import Problem, UserError
from runner.durable_files import write_atomically

_ANOTHER_FILE = "-o FILE, a file in a folder that can be written"


def check_new_file(path: Path, may_overwrite: bool) -> None:
    """Raise `UserError` if the path is a folder, a device or a pipe, or a file that may not be overwritten."""
    if os.path.exists(path) and not os.path.isfile(path):
        what = "the path is a folder" if os.path.isdir(path) else "this is not a regular file"
        raise UserError(Problem(f"the file cannot be written: {what}", str(path)))
    if os.path.exists(path) and not may_overwrite:
        raise UserError(
            Problem("the file already exists", str(path), fix="choose another file, or add --force to overwrite it")
        )


def write_file(file: Path, content: bytes, name: str = "file", fix: str | None = _ANOTHER_FILE) -> None:
    """Write a file and the folders above it; raises `UserError` with the name of the file and the fix."""
    try:
        write_atomically(file, content)
    except OSError as error:
        raise UserError(Problem(f"the {name} cannot be written", str(file), str(error), fix=fix)) from error
