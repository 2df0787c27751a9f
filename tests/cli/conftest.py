"""`run_cli`: the command line in a process of its own, as a person runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import WAIT_S

ROOT = Path(__file__).parent.parent.parent
RunCli = Callable[..., subprocess.CompletedProcess[str]]
# A program that runs the command line and prints which of the heavy packages it has imported.
HEAVY_IMPORTS = (
    "import sys; from runner.cli.main import main; code = main(sys.argv[1:]);"
    "heavy = [name for name in ('torch', 'ray', 'mlflow', 'rich') if name in sys.modules];"
    "print(heavy, file=sys.stderr);"
    "sys.exit(code)"
)


@pytest.fixture
def run_cli(tmp_path: Path) -> RunCli:
    """Runs `python -m runner ARGUMENTS` in an empty folder."""

    def run(*arguments: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
        program = ["-m", "runner"] if code is None else ["-c", code]
        command = [sys.executable, *program, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=WAIT_S)

    return run
