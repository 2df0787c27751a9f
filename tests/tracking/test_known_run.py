import shutil
import sys
from pathlib import Path

import pytest

from runner.tracking.headline import resume_command
from runner.tracking.known_run import StoreLocation, resolve_store, ui_command


def test_default_is_a_database_and_a_folder_in_outputs(tmp_path: Path) -> None:
    assert resolve_store(None, None, tmp_path, {}) == StoreLocation(
        f"sqlite:///{tmp_path}/mlflow.db", f"file://{tmp_path}/mlflow-artifacts"
    )


def test_the_environment_counts_only_without_a_configured_uri(tmp_path: Path) -> None:
    environ = {"MLFLOW_TRACKING_URI": "http://server:5000"}
    assert resolve_store(None, None, tmp_path, environ) == StoreLocation("http://server:5000", None)
    assert resolve_store(f"sqlite:///{tmp_path}/other.db", None, tmp_path, environ).tracking_uri.endswith("/other.db")


def test_relative_locations_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    location = resolve_store("sqlite:///sub/runs.db?timeout=5", None, "outputs", {})
    assert location == StoreLocation(
        f"sqlite:///{tmp_path}/sub/runs.db?timeout=5", f"file://{tmp_path}/sub/mlflow-artifacts"
    )
    assert resolve_store(None, "my files", "outputs", {}).artifact_location == f"file://{tmp_path}/my%20files"
    assert resolve_store(None, "s3://bucket/a", "outputs", {}).artifact_location == "s3://bucket/a"


def test_databases_that_are_no_file_put_artifacts_into_outputs(tmp_path: Path) -> None:
    location = resolve_store("postgresql://u@host/db", None, tmp_path, {})
    assert location == StoreLocation("postgresql://u@host/db", f"file://{tmp_path}/mlflow-artifacts")


def test_printed_commands_are_quoted_and_name_a_program_that_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    python = sys.executable
    assert ui_command("sqlite:////a b/mlflow.db") == (
        f"{python} -m mlflow ui --backend-store-uri 'sqlite:////a b/mlflow.db'"
    )
    assert resume_command("/a b/run") == f"{python} -m runner resume '/a b/run'"
    monkeypatch.setattr(shutil, "which", lambda name: f"{Path(python).parent}/{name}")
    assert ui_command("sqlite:////a/mlflow.db") == "mlflow ui --backend-store-uri sqlite:////a/mlflow.db"
    assert ui_command("http://server:5000") == "http://server:5000"
