"""Files of checkpoints: written durably, and read only if nothing is missing or altered."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from runner.checkpoints.errors import CheckpointError
from runner.config.documents import read_regular
from runner.config.errors import Problem

MISSING, ALTERED = "a file of the checkpoint is missing", "a file of the checkpoint was cut off or altered"


def write_file(path: Path, content: bytes) -> str:
    """Write a file that outlives a loss of power; returns its SHA-256."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(content).hexdigest()


def sync_folder(folder: Path) -> None:
    """Let the names in a folder outlive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_file(path: Path, digest: str) -> bytes:
    """Read a file with this SHA-256.

    Raises:
        CheckpointError: it is missing, cut off or altered.
    """
    try:
        content = read_regular(path)
    except OSError as error:
        raise broken(MISSING, path, f"{type(error).__name__}: {error}") from error
    got = hashlib.sha256(content).hexdigest()
    if got != digest:
        raise broken(ALTERED, path, f"{len(content)} bytes with digest {got[:12]}", f"digest {digest[:12]}")
    return content


def broken(what: str, path: Path, got: str, allowed: str | None = None) -> CheckpointError:
    """Make the error about a file or folder of a checkpoint."""
    return CheckpointError(Problem(what, where=str(path), got=got, allowed=allowed))
