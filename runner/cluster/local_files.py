"""Folder for the files of a Ray cluster that is started on this machine: a short path for sockets, also without a
home."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.config.errors import ConfigError, Problem

# The path of a Unix socket has at most 107 bytes, of which Ray appends /session_DATE_TIME_PID/sockets/plasma_store.
_MAX_FOLDER_BYTES = 107 - 64
_BASES = ("/tmp", "/var/tmp", "/dev/shm")
_TOKEN_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"


def ray_temp_dir() -> str | None:
    """Return a folder for sockets and logs if the path of Ray's default is too long, else None.

    Raises:
        ConfigError: no folder with a short path can be written to.
    """
    folder = os.path.join(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), "ray")
    return None if len(os.fsencode(folder)) <= _MAX_FOLDER_BYTES else str(_private_folder() / "ray")


@contextmanager
def ray_token() -> Iterator[None]:
    """Within the block, name a file for Ray's token if Ray cannot write it to the home folder."""
    if any(name in os.environ for name in _TOKEN_VARIABLES) or _has_home():
        yield
        return
    path = _private_folder() / "auth_token"
    if not path.exists():
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
    os.environ[_TOKEN_PATH] = str(path)
    try:
        yield
    finally:
        del os.environ[_TOKEN_PATH]


def _has_home() -> bool:
    """Return whether Ray can read or write its token in the home folder."""
    try:
        folder = Path.home() / ".ray"
        if (folder / "auth_token").is_file():
            return True
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder
        return False


def _private_folder() -> Path:
    """Return a folder with a short path that only this user may read; raises `ConfigError` if there is none.

    Ray makes its folder writable by everyone, so it gets a subfolder.
    """
    for base in _BASES:
        path = Path(base, f"runner-{os.getuid()}")
        try:
            path.mkdir(mode=0o700, exist_ok=True)
            status = path.lstat()
        except OSError:
            continue
        is_private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
        if is_private and os.access(path, os.W_OK | os.X_OK):
            return path
    what = "Ray cannot write to any folder with a path that is short enough for its sockets"
    fix = f"set RAY_TMPDIR=FOLDER with a path of at most {_MAX_FOLDER_BYTES - len('/ray')} bytes"
    raise ConfigError([Problem(what, "RAY_TMPDIR", tempfile.gettempdir(), fix=fix)])
