"""A policy as a version of a registered model in MLflow. Imports MLflow, which takes seconds."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from runner.config.errors import Problem, RunFailure
from runner.tracking.mlflow_store import StoreNotWritableError, check_sqlite_writable, error_line

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
    from mlflow.types import Schema, TensorSpec

    return Schema([TensorSpec(np.dtype(port["dtype"]), (-1, *port["shape"]), port["name"]) for port in ports])
