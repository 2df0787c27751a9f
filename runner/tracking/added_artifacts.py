"""Artifacts that are added to the MLflow run of a folder later, by another process."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from runner.tracking.known_run import RUN_FILE, UnknownRunError, read_known_run
from runner.tracking.mlflow_store import StoreNotWritableError, check_sqlite_writable, error_line

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
