"""`result.json`: the last result of a run, whole or not there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.tracking.plain_values import json_value


def write_result(path: str | os.PathLike[str], result: Mapping[str, Any]) -> None:
    """Write `result` as JSON: a reader sees the old file or the new one, never a part. Raises OSError."""
    write_atomically(Path(path), (json.dumps(json_value(result), indent=2) + "\n").encode())


def write_atomically(path: Path, content: bytes) -> None:
    """Write a temporary file in the same folder, fsync, rename, fsync the folder; the file's mode and links stay."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _fsync_folder(path.parent)


def _fsync_folder(folder: Path) -> None:
    with suppress(OSError):  # folders cannot be opened on Windows
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
