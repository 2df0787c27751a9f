"""The run in MLflow: its store, its name, and which run a resumed run dir continues."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runner.config.schemas import ExperimentConfig
from runner.tracking.known_run import (
    RUN_FILE,
    StoreLocation,
    UnknownRunError,
    find_original,
    read_known_run,
    resolve_store,
    sqlite_path,
)
from runner.tracking.mlflow_tracker import MLflowSettings


def known_run(
    run_dir: Path, note: Callable[[str], None] = lambda text: None, is_trusted: bool = False
) -> dict[str, str]:
    """Return `run_id` and `tracking_uri` of a run in MLflow; empty, with a note, if MLflow may not be contacted."""
    try:
        return read_known_run(run_dir, is_trusted)
    except UnknownRunError as error:
        note(f"starting a new MLflow run: {str(error).splitlines()[0]}")
        return {}


def continued_run(
    run_dir: Path, note: Callable[[str], None] = lambda text: None, is_trusted: bool = False
) -> dict[str, str]:
    """Return the MLflow run that a run dir continues: `known_run`, but only its store if the run dir is a copy.

    Empty, with a note, if the SQLite file with the run does not exist; MLflow would create an empty one.
    """
    known = known_run(run_dir, note, is_trusted)
    database = sqlite_path(known["tracking_uri"]) if known else None
    if database is not None and not os.path.exists(database):
        note(f"starting a new MLflow run: the database of the old one, {database}, does not exist")
        return {}
    original = find_original(run_dir / RUN_FILE) if known else None
    if original is None:
        return known
    note(f"starting a new MLflow run: {run_dir} is a copy of {original}, to which the old one belongs")
    return {"tracking_uri": known["tracking_uri"]}


def find_store(config: ExperimentConfig, run_dir: Path, known: Mapping[str, str], is_own: bool = True) -> StoreLocation:
    """Find the store of the resumed run (`known`), else one in `outputs` around the run dir, or in its parent.

    For a run from another source (not `is_own`), use `outputs` in the working directory, because a store that was
    copied with the run would determine where artifacts are written.
    """
    outputs = next((parent for parent in run_dir.parents if parent.name == "outputs"), run_dir.parent)
    if not is_own:
        outputs = Path.cwd() / "outputs"
    tracking = config.tracking
    return resolve_store(tracking.tracking_uri or known.get("tracking_uri"), tracking.artifact_location, outputs)


def mlflow_settings(
    config: ExperimentConfig, run_dir: Path, store: StoreLocation, known: Mapping[str, str]
) -> MLflowSettings:
    """Return the location and the name of the run in MLflow; the `known` run if the store is the same."""
    tracking = config.tracking
    return MLflowSettings(
        tracking_uri=store.tracking_uri,
        artifact_location=store.artifact_location,
        experiment_name=experiment_name_of(config),
        run_name=run_name_of(config, run_dir),
        run_id=known.get("run_id") if known.get("tracking_uri") == store.tracking_uri else None,
        flush_interval_s=tracking.flush_interval_s,
        run_file=str(run_dir / RUN_FILE),
    )


def experiment_name_of(config: ExperimentConfig) -> str:
    """Return the name of the experiment in MLflow and in other trackers."""
    return config.tracking.experiment_name or config.experiment_name or "custom"


def run_name_of(config: ExperimentConfig, run_dir: Path) -> str:
    """Return the name of the run in MLflow and in other trackers."""
    return config.tracking.run_name or "/".join(run_dir.parts[-2:])


def information_tags(info: Mapping[str, Any]) -> dict[str, str]:
    """Return the revision and the versions of `run_info` as tags."""
    git = info["git"]
    tags = {"git_revision": str(git["revision"]), "git_dirty": str(git["dirty"])}
    return tags | {f"version.{name}": version for name, version in info["versions"].items()}
