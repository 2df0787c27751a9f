"""`run_cli`: the command line in a process of its own, as a person runs it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import run_process

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
        program = ("-m", "runner") if code is None else ("-c", code)
        return run_process(tmp_path, *arguments, program=program, exit_code=None)

    return run
