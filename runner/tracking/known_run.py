"""Where MLflow keeps a run, and the MLflow run of a folder, to which other processes add artifacts and models."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import shutil
import sqlite3
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.config.documents import parse_json
from runner.config.errors import Problem, RunFailure, UserError
from runner.config.signatures import foreign_reason, signed
from runner.tracking.progress_log import write_result

RUN_FILE = "mlflow_run.json"
_KIND = "mlflow run"


class UnknownRunError(UserError):
    """The file cannot be read, or comes from elsewhere: its address is not contacted."""


def write_known_run(path: str | os.PathLike[str], run_id: str, tracking_uri: str) -> None:
    """Write the file; raises OSError."""
    write_result(path, signed({"run_id": run_id, "tracking_uri": tracking_uri}, _KIND))


def read_known_run(folder: Path, is_trusted: bool = False) -> dict[str, str]:
    """Return `run_id` and `tracking_uri`; empty where nothing is in MLflow.

    Args:
        folder: of a run or a sweep.
        is_trusted: whoever wrote the file.

    Raises:
        UnknownRunError: it cannot be read, or somebody else wrote it.
    """
    path = folder / RUN_FILE
    try:
        content = parse_json(path.read_bytes())
        known = {name: content[name] for name in ("run_id", "tracking_uri")}
        if not all(isinstance(value, str) for value in known.values()):
            raise ValueError("run_id and tracking_uri are texts")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError) as error:
        problem = Problem(f"the run's MLflow id cannot be read: {error!s:.200}", str(path))
        raise UnknownRunError(problem.render_alone()) from error
    reason = None if is_trusted else foreign_reason(content, _KIND)
    if reason is not None:
        what = "the run's MLflow id comes from elsewhere, its address is not contacted"
        raise UnknownRunError(Problem(what, str(path), f"{known['tracking_uri']}, {reason}", "--trust").render_alone())
    return known


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


_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}


class NotLoggedError(Exception):
    """MLflow did not take an artifact; the text says why."""


def has_mlflow_run(folder: Path) -> bool:
    """Return whether a sweep or a run is in MLflow."""
    return (folder / RUN_FILE).is_file()


def add_artifacts(folder: Path, files: Iterable[Path], artifact_folder: str, is_trusted: bool = False) -> str:
    """Put files into the artifacts of a sweep's or a run's MLflow run. Imports MLflow, which takes seconds.

    How and when that run ended stays as it is.

    Args:
        folder: of the sweep or the run, with `mlflow_run.json`.
        files: made one by one, so that none is made for a store that cannot be written.
        artifact_folder: where they go among the artifacts.
        is_trusted: whoever wrote `mlflow_run.json`.

    Returns:
        Where they were put, for a person.

    Raises:
        NotLoggedError: the store cannot be reached or does not take a file, or a file cannot be made.
    """
    try:
        known = read_known_run(folder, is_trusted)
    except UnknownRunError as error:
        raise NotLoggedError(str(error).splitlines()[0]) from error
    run_id, uri = known["run_id"], known["tracking_uri"]
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
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


_ARTIFACT_NAME = "policy"
_NEEDED = ("onnxruntime", "numpy")
_URI = "MLFLOW_TRACKING_URI"


def register_model(
    content: bytes, manifest: Mapping[str, Any], name: str, known_run: Mapping[str, str], checkpoint: str
) -> str:
    """Log an ONNX policy with its signature in the run that it is of, and register it.

    Args:
        content: the ONNX file.
        manifest: what it says of itself.
        name: of the registered model; made if there is none.
        known_run: `run_id` and `tracking_uri` of the run.
        checkpoint: where the parameters are from, for a tag of the version.

    Returns:
        The number of the new version.

    Raises:
        RunFailure: MLflow does not take it.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    import mlflow
    from mlflow.exceptions import MlflowException

    try:
        check_sqlite_writable(known_run["tracking_uri"])
        return _register(mlflow, content, manifest, name, known_run, checkpoint)
    except (MlflowException, StoreNotWritableError, OSError) as error:
        problem = Problem("MLflow does not take the policy", known_run["tracking_uri"], error_line(error))
        raise RunFailure(problem) from error


def _register(
    mlflow: Any, content: bytes, manifest: Mapping[str, Any], name: str, known_run: Mapping[str, str], checkpoint: str
) -> str:
    named = os.environ.get(_URI)
    mlflow.set_tracking_uri(known_run["tracking_uri"])  # sets the environment's, too
    try:
        return _register_there(mlflow, content, manifest, name, known_run, checkpoint)
    finally:
        mlflow.set_tracking_uri(None)  # what the caller had set stands in the environment, too
        if named is not None:
            os.environ[_URI] = named


def _register_there(
    mlflow: Any, content: bytes, manifest: Mapping[str, Any], name: str, known_run: Mapping[str, str], checkpoint: str
) -> str:
    import mlflow.onnx
    import onnx

    client = mlflow.MlflowClient()
    before = client.get_run(known_run["run_id"]).info
    with mlflow.start_run(run_id=known_run["run_id"]):
        info = mlflow.onnx.log_model(
            onnx.load_from_string(content),
            name=_ARTIFACT_NAME,
            signature=_signature(manifest),
            registered_model_name=name,
            pip_requirements=[f"{package}=={importlib.metadata.version(package)}" for package in _NEEDED],
            save_as_external_data=False,
            metadata={"runner_manifest": dict(manifest)},
        )
    if before.end_time is not None:  # logging to a run that has ended must not change how and when it did
        client.set_terminated(known_run["run_id"], before.status, before.end_time)
    version = str(info.registered_model_version)
    client.set_model_version_tag(name, version, "runner.checkpoint", checkpoint)
    return version


def _signature(manifest: Mapping[str, Any]) -> Any:
    from mlflow.models import ModelSignature

    return ModelSignature(inputs=_schema(manifest["inputs"]), outputs=_schema(manifest["outputs"]))


def _schema(ports: Sequence[Mapping[str, Any]]) -> Any:
    import numpy as np
    from mlflow.types import Schema, TensorSpec

    return Schema([TensorSpec(np.dtype(port["dtype"]), (-1, *port["shape"]), port["name"]) for port in ports])
