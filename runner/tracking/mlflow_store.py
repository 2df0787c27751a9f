"""Where MLflow keeps a run, decided without importing MLflow."""

from __future__ import annotations

import os
import shlex
import shutil
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

SQLITE_PREFIX = "sqlite:///"
_ELSEWHERE = "or set tracking.tracking_uri, or tracking.mlflow=false"
_ADVICE = {  # by what SQLite and the operating system say
    "readonly database": f"make the file and its folder writable, {_ELSEWHERE}",
    "Read-only file system": f"its file system is mounted read-only, {_ELSEWHERE}",
    "Permission denied": f"make the file and its folder writable, {_ELSEWHERE}",
    "database is locked": f"another program keeps it locked: end that one, {_ELSEWHERE}",
    "disk is full": f"make room on its disk, {_ELSEWHERE}",
    "No space left": f"make room on its disk, {_ELSEWHERE}",
    "disk I/O error": f"its disk fails, or is full, {_ELSEWHERE}",
    "unable to open database file": f"its folder cannot be used, {_ELSEWHERE}",
    "not a database": f"the file is something else, {_ELSEWHERE}",
}
_SERVER_SCHEMES = ("http:", "https:", "databricks", "uc:")


@dataclass(frozen=True)
class StoreLocation:
    """`artifact_location` None leaves the choice to the tracking server."""

    tracking_uri: str
    artifact_location: str | None


def resolve_store(
    tracking_uri: str | None,
    artifact_location: str | None,
    outputs_dir: str | os.PathLike[str],
    environ: Mapping[str, str] = os.environ,
) -> StoreLocation:
    """Return the store of a run.

    `tracking_uri` is the configuration's; None takes MLFLOW_TRACKING_URI from the environment, and without
    that `outputs_dir`/mlflow.db. Always an explicit, absolute URI: left to itself MLflow writes into the
    working directory, or into an old `./mlruns` folder that lies there. Without an `artifact_location`
    artifacts go next to an SQLite file, into `outputs_dir` for another database, and where the server says
    for a server.
    """
    outputs = Path(outputs_dir).absolute()
    uri = tracking_uri or environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE_PREFIX}{outputs / 'mlflow.db'}"
    database = sqlite_path(uri)
    if database is not None:
        _, mark, query = uri.partition("?")
        uri = f"{SQLITE_PREFIX}{database}{mark}{query}"
    if artifact_location is None and not uri.startswith(_SERVER_SCHEMES):
        folder = database.parent if database is not None else outputs
        artifact_location = (folder / "mlflow-artifacts").as_uri()
    elif artifact_location is not None and "://" not in artifact_location:
        artifact_location = Path(artifact_location).absolute().as_uri()
    return StoreLocation(uri, artifact_location)


def sqlite_path(tracking_uri: str) -> Path | None:
    """Return the absolute path of the SQLite file that `tracking_uri` names; None for any other store."""
    if not tracking_uri.startswith(SQLITE_PREFIX):
        return None
    return Path(tracking_uri.removeprefix(SQLITE_PREFIX).partition("?")[0]).absolute()


def ui_command(tracking_uri: str) -> str:
    """Return what to type to see the runs of `tracking_uri`; for a tracking server its address."""
    if tracking_uri.startswith(_SERVER_SCHEMES):
        return tracking_uri
    mlflow = "mlflow" if shutil.which("mlflow") else f"{shlex.quote(sys.executable)} -m mlflow"
    return f"{mlflow} ui --backend-store-uri {shlex.quote(tracking_uri)}"


def python_command() -> str:
    """Return `python` where that is this interpreter, else its path, for commands that a reader is to type."""
    found = shutil.which("python")
    return "python" if found and Path(found) == Path(sys.executable) else shlex.quote(sys.executable)


class StoreNotWritableError(Exception):
    """The tracking store cannot be written; the text says which and why."""


def check_sqlite_writable(tracking_uri: str) -> None:
    """Raise StoreNotWritableError where an SQLite store cannot be written (MLflow would retry for 100 s)."""
    path = sqlite_path(tracking_uri)
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=20.0, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except (OSError, sqlite3.Error) as error:
        raise StoreNotWritableError(f"the database {path} cannot be written ({error})") from error


def error_line(error: BaseException) -> str:
    """Return the first line of an error's text, and what to do about it where that is known: for a one-line warning."""
    text = (str(error).strip().splitlines() or [""])[0][:300]
    line = text if isinstance(error, StoreNotWritableError) else f"{type(error).__name__}: {text}"
    advice = next((advice for mark, advice in _ADVICE.items() if mark in text), None)
    return line if advice is None else f"{line}: {advice}"
