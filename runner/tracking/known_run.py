"""Locate the MLflow store of a run, and add artifacts and models to the MLflow run of a folder."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import shutil
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.config.documents import parse_json, read_regular
from runner.config.errors import Problem, RunFailure, UserError
from runner.config.signatures import foreign_reason, signed
from runner.tracking.progress_log import write_result

RUN_FILE = "mlflow_run.json"
_KIND = "mlflow run"
_FOLDER = "folder"


class UnknownRunError(UserError):
    """The file with the MLflow run cannot be read, or is untrusted, so its address is not contacted."""


def write_known_run(path: str | os.PathLike[str], run_id: str, tracking_uri: str) -> None:
    """Write the file, with the folder it belongs to. Raises OSError."""
    content = {"run_id": run_id, "tracking_uri": tracking_uri, **folder_of(Path(path))}
    write_result(path, signed(content, _KIND))


def folder_of(file: Path) -> dict[str, str]:
    """Return the entry by which `find_original` recognises copies of a file with the id of a run."""
    return {_FOLDER: str(file.absolute().parent)}


def find_original(file: Path) -> Path | None:
    """Return the folder that the folder of a file was copied from.

    None if the file was written for its folder, or if the folder was moved, so that the original no longer exists.

    Args:
        file: a JSON file with an entry of `folder_of`, which contains the id of a run in a tracker.
    """
    try:
        content = parse_json(read_regular(file))
        original = Path(content[_FOLDER]) / file.name
        is_copy = not original.samefile(file) and parse_json(read_regular(original)) == content
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return original.parent if is_copy else None


def read_known_run(folder: Path, is_trusted: bool = False) -> dict[str, str]:
    """Return `run_id` and `tracking_uri`; empty if the folder does not have an MLflow run.

    If an SQLite store was moved together with the folder, the URI names its new place.

    Args:
        folder: folder of a run or a sweep.
        is_trusted: whether to accept files written by other installations.

    Raises:
        UnknownRunError: the file cannot be read, or another installation wrote it.
    """
    path = folder / RUN_FILE
    try:
        content = parse_json(path.read_bytes())
        known = {name: content[name] for name in ("run_id", "tracking_uri")}
        if not all(isinstance(value, str) for value in known.values()):
            raise ValueError("run_id and tracking_uri must be text")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError) as error:
        problem = Problem(f"the run's MLflow id cannot be read: {error!s:.200}", str(path))
        raise UnknownRunError(problem) from error
    reason = None if is_trusted else foreign_reason(content, _KIND)
    if reason is not None:
        what = "the run's MLflow id comes from another installation, so its address is not contacted"
        got, fix = f"{known['tracking_uri']}, {reason}", "use --trust if you trust it"
        raise UnknownRunError(Problem(what, str(path), got, fix=fix))
    return {**known, "tracking_uri": _follow_moved_store(known["tracking_uri"], path, content.get(_FOLDER))}


def _follow_moved_store(tracking_uri: str, run_file: Path, old_folder: object) -> str:
    """Return the URI of an SQLite store that was moved with the folder of a run, or the same URI."""
    database = sqlite_path(tracking_uri)
    if database is None or os.path.exists(database) or not isinstance(old_folder, str):
        return tracking_uri
    moved = os.path.normpath(run_file.absolute().parent / os.path.relpath(database, old_folder))
    return sqlite_uri(moved, tracking_uri) if os.path.exists(moved) else tracking_uri


SQLITE_PREFIX = "sqlite:///"
_ELSEWHERE = "or set tracking.tracking_uri, or tracking.mlflow=false"
_ADVICE = {  # text in errors of SQLite and the operating system -> advice
    "readonly database": f"make the file and its folder writable, {_ELSEWHERE}",
    "Read-only file system": f"its file system is mounted read-only, {_ELSEWHERE}",
    "Permission denied": f"make the file and its folder writable, {_ELSEWHERE}",
    "database is locked": f"another program keeps it locked: end that program, {_ELSEWHERE}",
    "disk is full": f"free disk space, {_ELSEWHERE}",
    "No space left": f"free disk space, {_ELSEWHERE}",
    "disk I/O error": f"its disk is full or fails, {_ELSEWHERE}",
    "unable to open database file": f"its folder cannot be used, {_ELSEWHERE}",
    "not a database": f"the file is not an SQLite database, {_ELSEWHERE}",
}
_SERVER_SCHEMES = ("http:", "https:", "databricks", "uc:")


@dataclass(frozen=True)
class StoreLocation:
    """Location of an MLflow store. Without an `artifact_location`, the tracking server chooses one."""

    tracking_uri: str
    artifact_location: str | None


def resolve_store(
    tracking_uri: str | None,
    artifact_location: str | None,
    outputs_dir: str | os.PathLike[str],
    environ: Mapping[str, str] = os.environ,
) -> StoreLocation:
    """Return the store of a run.

    `tracking_uri` is the configured URI, or else MLFLOW_TRACKING_URI from the environment, or else
    `outputs_dir`/mlflow.db. The result is always an explicit, absolute URI: MLflow's default is the working directory
    or an old `./mlruns` folder in it. Without an `artifact_location`, artifacts are stored next to an SQLite file, in
    `outputs_dir` for another database, and where the server decides for a server.
    """
    outputs = Path(outputs_dir).absolute()
    uri = tracking_uri or environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE_PREFIX}{outputs / 'mlflow.db'}"
    database = sqlite_path(uri)
    if database is not None:
        uri = sqlite_uri(database, uri)
    if artifact_location is None and not uri.startswith(_SERVER_SCHEMES):
        folder = database.parent if database is not None else outputs
        artifact_location = (folder / "mlflow-artifacts").as_uri()
    elif artifact_location is not None and "://" not in artifact_location:
        artifact_location = Path(artifact_location).absolute().as_uri()
    return StoreLocation(uri, artifact_location)


def sqlite_path(tracking_uri: str) -> Path | None:
    """Return the absolute path of the SQLite file of `tracking_uri`, or None for other stores."""
    if not tracking_uri.startswith(SQLITE_PREFIX):
        return None
    return Path(tracking_uri.removeprefix(SQLITE_PREFIX).partition("?")[0]).absolute()


def sqlite_uri(path: str | os.PathLike[str], tracking_uri: str) -> str:
    """Return the URI of the SQLite file at a path, with the query of `tracking_uri`."""
    _, mark, query = tracking_uri.partition("?")
    return f"{SQLITE_PREFIX}{os.fspath(path)}{mark}{query}"


def ui_command(tracking_uri: str) -> str:
    """Return the command that shows the runs of `tracking_uri`, or the address of a tracking server."""
    if tracking_uri.startswith(_SERVER_SCHEMES):
        return tracking_uri
    mlflow = "mlflow" if shutil.which("mlflow") else f"{shlex.quote(sys.executable)} -m mlflow"
    return f"{mlflow} ui --backend-store-uri {shlex.quote(tracking_uri)}"


def runner_command() -> str:
    """Return the command `runner` if it is installed with this interpreter, else `PYTHON -m runner`."""
    found = shutil.which("runner")
    if found and Path(found).parent == Path(sys.executable).parent:
        return "runner"
    return f"{shlex.quote(sys.executable)} -m runner"


class StoreNotWritableError(Exception):
    """The tracking store cannot be written; the message names it and the reason."""


def check_sqlite_writable(tracking_uri: str) -> None:
    """Raise StoreNotWritableError if an SQLite store cannot be written. MLflow would retry for 100 s."""
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
    """Return the first line of an error and, if known, advice; for a one-line warning."""
    text = (str(error).strip().splitlines() or [""])[0][:300]
    line = text if isinstance(error, StoreNotWritableError) else f"{type(error).__name__}: {text}"
    advice = next((advice for mark, advice in _ADVICE.items() if mark in text), None)
    return line if advice is None else f"{line}: {advice}"


MLFLOW_VARIABLES = {  # defaults of environment variables
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",  # MLflow's default of 7 takes four minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}


class NotLoggedError(Exception):
    """MLflow rejected an artifact; the message names the reason."""


def has_mlflow_run(folder: Path) -> bool:
    """Return whether a sweep or a run is recorded in MLflow."""
    return (folder / RUN_FILE).is_file()


def add_artifacts(folder: Path, files: Iterable[Path], artifact_folder: str, is_trusted: bool = False) -> str:
    """Add files to the artifacts of a sweep's or a run's MLflow run. Imports MLflow, which takes seconds.

    The status and end time of that run are not changed.

    Args:
        folder: folder of the sweep or run, with `mlflow_run.json`.
        files: created one by one, so that none is created if the store cannot be written.
        artifact_folder: target folder among the artifacts.
        is_trusted: whether to accept a `mlflow_run.json` of another installation.

    Returns:
        Description of the target for users.

    Raises:
        NotLoggedError: the store cannot be reached or rejects a file, or a file cannot be created.
    """
    try:
        known = read_known_run(folder, is_trusted)
    except UnknownRunError as error:
        raise NotLoggedError(str(error).splitlines()[0]) from error
    run_id, uri = known["run_id"], known["tracking_uri"]
    _set_defaults_of_mlflow()
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        check_sqlite_writable(uri)
        client = MlflowClient(tracking_uri=uri)
        for file in files:
            client.log_artifact(run_id, str(file), artifact_folder)
    except (MlflowException, StoreNotWritableError, OSError, ValueError, KeyError, TypeError) as error:
        raise NotLoggedError(error_line(error)) from error
    return f"{uri}, run {run_id}, artifacts {artifact_folder}/"


def _set_defaults_of_mlflow() -> None:
    for name, value in MLFLOW_VARIABLES.items():
        os.environ.setdefault(name, value)


_ARTIFACT_NAME = "policy"
_NEEDED = ("onnxruntime", "numpy")
_URI = "MLFLOW_TRACKING_URI"


def register_model(
    content: bytes, manifest: Mapping[str, Any], name: str, known_run: Mapping[str, str], checkpoint: str
) -> str:
    """Log an ONNX policy with its signature in its run, and register it.

    Args:
        content: the ONNX file.
        manifest: manifest of the ONNX file.
        name: name of the registered model, which is created if it does not exist.
        known_run: `run_id` and `tracking_uri` of the run.
        checkpoint: source of the parameters, for a tag of the version.

    Returns:
        The number of the new version.

    Raises:
        RunFailure: MLflow rejects the policy.
    """
    _set_defaults_of_mlflow()
    import mlflow
    from mlflow.exceptions import MlflowException

    uri = known_run["tracking_uri"]
    try:
        check_sqlite_writable(uri)
        with _tracking_to(mlflow, uri):
            return _register(mlflow, content, manifest, name, known_run["run_id"], checkpoint)
    except (MlflowException, StoreNotWritableError, OSError) as error:
        raise RunFailure(Problem("MLflow cannot store the policy", uri, error_line(error))) from error


@contextmanager
def _tracking_to(mlflow: Any, uri: str) -> Iterator[None]:
    named = os.environ.get(_URI)
    mlflow.set_tracking_uri(uri)  # also sets the environment variable
    try:
        yield
    finally:
        mlflow.set_tracking_uri(None)  # the caller's value, if any, is restored from the environment variable
        if named is not None:
            os.environ[_URI] = named


def _register(mlflow: Any, content: bytes, manifest: Mapping[str, Any], name: str, run_id: str, checkpoint: str) -> str:
    import mlflow.onnx
    import onnx
    from mlflow.models import ModelSignature

    client = mlflow.MlflowClient()
    before = client.get_run(run_id).info
    with mlflow.start_run(run_id=run_id):
        info = mlflow.onnx.log_model(
            onnx.load_from_string(content),
            name=_ARTIFACT_NAME,
            signature=ModelSignature(_schema(manifest["inputs"]), _schema(manifest["outputs"])),
            registered_model_name=name,
            pip_requirements=[f"{package}=={importlib.metadata.version(package)}" for package in _NEEDED],
            save_as_external_data=False,
            metadata={"runner_manifest": dict(manifest)},
        )
    if before.end_time is not None:  # logging to an ended run must not change its status and end time
        client.set_terminated(run_id, before.status, before.end_time)
    version = str(info.registered_model_version)
    client.set_model_version_tag(name, version, "runner.checkpoint", checkpoint)
    return version


def _schema(ports: Sequence[Mapping[str, Any]]) -> Any:
    import numpy as np
    from mlflow.types import Schema, TensorSpec

    return Schema([TensorSpec(np.dtype(port["dtype"]), (-1, *port["shape"]), port["name"]) for port in ports])
