"""The page and pictures of its charts as artifacts in MLflow."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from runner.pages.page import Page
from runner.tracking.added_artifacts import add_artifacts

_ARTIFACT_FOLDER = "report"


def log_to_mlflow(folder: Path, file: Path, page: Page, is_trusted: bool = False) -> str:
    """Put the page and a PNG of each of its large charts into the artifacts of a sweep's or a run's MLflow run.

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
    with tempfile.TemporaryDirectory() as scratch:
        return add_artifacts(folder, _files(file, page, Path(scratch)), _ARTIFACT_FOLDER, is_trusted)


def _files(file: Path, page: Page, scratch: Path) -> Iterator[Path]:
    """Yield the page, then the pictures as they are drawn into `scratch`."""
    yield file
    for figure in page.figures:
        if not figure.is_small:
            picture = scratch / f"{figure.name}.png"
            picture.write_bytes(figure.to_png())
            yield picture
