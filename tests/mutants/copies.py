"""Copies of the tree, in which a mutation is made, judged by its tests and undone."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.mutants.table import Mutant

TIMEOUT_S = 300.0
_NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "outputs", "multirun", "build", "dist")
_PYTEST_PASSED, _PYTEST_FAILED = 0, 1

Outcome = Literal["killed", "survived", "broken"]


@dataclass(frozen=True)
class Verdict:
    """What tests said.

    Attributes:
        outcome: `killed`: a test failed; `survived`: all passed; `broken`: they ended in another way.
        text: the first test that failed, or what pytest printed last.
    """

    outcome: Outcome
    text: str = ""


class TreeCopy:
    """A copy of a tree.

    Args:
        root: the tree; it is only read.
        folder: where the copy is made; it does not exist yet.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._folder = folder
        shutil.copytree(root, folder, ignore=_NOT_COPIED)

    def judge(self, mutant: Mutant) -> Verdict:
        """Make a mutation in the copy, run its tests and undo it.

        Raises:
            TableError: the mutation does not apply.
        """
        text = mutant.apply(self._root)
        try:
            self._write(mutant.path, text)
            return self.run(mutant.killed_by)
        finally:
            self._write(mutant.path, (self._root / mutant.path).read_text(encoding="utf-8"))

    def run(self, tests: Sequence[str]) -> Verdict:
        """Run tests in the copy as it is, up to the first failure."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        environment = os.environ | {"PYTHONPATH": str(self._folder), "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                command,
                cwd=self._folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Verdict("broken", f"no end after {TIMEOUT_S:g} s")
        if done.returncode == _PYTEST_PASSED:
            return Verdict("survived")
        if done.returncode == _PYTEST_FAILED:
            return Verdict("killed", _first_failure(done.stdout))
        return Verdict("broken", f"exit code {done.returncode}: {done.stdout[-2000:]}")

    def _write(self, path: str, text: str) -> None:
        """Write a source file; without its bytecode, which Python takes for its own if size and second are equal."""
        file = self._folder / path
        file.write_text(text, encoding="utf-8")
        Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)


def _first_failure(output: str) -> str:
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return failed[1] if failed else output[-2000:]
