"""Notebooks that run in kernels of their own."""

from __future__ import annotations

import os
import sys
import warnings
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.conftest import ROOT, WAIT_S

_PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # `!python` is ours
ENVIRONMENT = os.environ | {"PATH": _PATH, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


class RunNotebook(NotebookClient):
    """Runs a notebook in a folder, and keeps when outputs were updated in place.

    Args:
        notebook: gets its outputs.
        folder: where it runs; nothing of the user's settings is read.
    """

    def __init__(self, notebook: nbformat.NotebookNode, folder: Path) -> None:
        super().__init__(notebook, timeout=int(WAIT_S), resources={"metadata": {"path": str(folder)}})
        self._folder = folder
        self.updated: list[datetime] = []

    def run(self) -> nbformat.NotebookNode:
        """Run all cells, and return the notebook with its outputs.

        Raises:
            CellExecutionError: a cell failed.
        """
        own = {name: str(self._folder / name.lower()) for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR")}
        with warnings.catch_warnings():  # of Jupyter about itself
            warnings.simplefilter("ignore")
            return self.execute(env=ENVIRONMENT | own)

    def process_message(self, message: Any, cell: Any, cell_index: int) -> Any:
        if message["msg_type"] == "update_display_data":
            self.updated.append(message["header"]["date"])
        return super().process_message(message, cell, cell_index)


def outputs_of(cell: nbformat.NotebookNode, kind: str) -> list[str]:
    """The outputs of a cell in a form such as text/html."""
    return [output.data[kind] for output in cell.outputs if kind in output.get("data", {})]


def printed_by(cell: nbformat.NotebookNode) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")
