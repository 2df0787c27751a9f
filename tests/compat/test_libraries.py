"""A library that lacks a private name is reported with the versions that fit."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import runner.compat
from runner.compat.libraries import Library, LibraryChangedError

NUMPY = Library("numpy", ">=1.26")


def test_missing_module_is_reported_with_the_versions_that_fit() -> None:
    with pytest.raises(LibraryChangedError) as caught, NUMPY.expected():
        import numpy._no_such_module  # noqa: F401
    text = str(caught.value)
    assert text.startswith("numpy ")
    assert "is not compatible with this version of runner: No module named 'numpy._no_such_module'" in text
    assert text.endswith("; pip install 'numpy>=1.26'")


def test_missing_attribute_is_reported() -> None:
    NUMPY.require(dict, "get", "items")
    with pytest.raises(LibraryChangedError, match="dict does not define _no_such_name"):
        NUMPY.require(dict, "get", "_no_such_name")


def test_other_errors_pass_through() -> None:
    with pytest.raises(ValueError, match="another"), NUMPY.expected():
        raise ValueError("another")


@pytest.mark.parametrize("path", sorted(Path(runner.compat.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_a_module_imports_one_library_and_nothing_else_of_runner(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    others = {name.split(".")[0] for name in imported} - sys.stdlib_module_names - {"omegaconf"}  # Hydra's values
    assert len(others - {"runner"}) <= 1
    assert all(name.startswith("runner.compat.") for name in imported if name.split(".")[0] == "runner")
