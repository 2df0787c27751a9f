"""The page and pictures of its charts in MLflow. Imports MLflow, which takes seconds."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from runner.report.page import Page
from runner.tracking.known_run import RUN_FILE, UnknownRunError, read_known_run
from runner.tracking.mlflow_store import StoreNotWritableError, check_sqlite_writable, error_line

_ARTIFACT_FOLDER = "report"
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}


class NotLoggedError(Exception):
    """MLflow did not take the report; the text says why."""


def has_mlflow_run(folder: Path) -> bool:
    """Return whether a sweep or a run is in MLflow."""
    return (folder / RUN_FILE).is_file()


def log_to_mlflow(folder: Path, file: Path, page: Page, is_trusted: bool = False) -> str:
    """Put the page and a PNG of each of its large charts into the artifacts of a sweep's or a run's MLflow run.

    How and when that run ended stays as it is.

    Args:
        folder: of the sweep or the run, with `mlflow_run.json`.
        file: the page.
        page: what it was made of.
        is_trusted: whoever wrote `mlflow_run.json`.

    Returns:
        Where it was put, for a person.

    Raises:
        NotLoggedError: the store cannot be reached or does not take it.
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
        client.log_artifact(run_id, str(file), _ARTIFACT_FOLDER)
        with tempfile.TemporaryDirectory() as scratch:
            for figure in page.figures:
                if not figure.is_small:
                    picture = Path(scratch) / f"{figure.name}.png"
                    picture.write_bytes(figure.to_png())
                    client.log_artifact(run_id, str(picture), _ARTIFACT_FOLDER)
    except (MlflowException, StoreNotWritableError, OSError, ValueError, KeyError, TypeError) as error:
        raise NotLoggedError(error_line(error)) from error
    return f"{uri}, run {run_id}, artifacts {_ARTIFACT_FOLDER}/"
