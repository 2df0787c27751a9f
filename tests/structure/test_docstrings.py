"""Sections of docstrings are indented so that the generated reference shows every entry."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

from tests.conftest import ROOT

HEADINGS = ("Args:", "Attributes:", "Returns:", "Raises:", "Yields:")
ENTRY = re.compile(r"( +)(\w+(?:, \w+)*): ")
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def names_of(node: Documented) -> set[str]:
    """Return the arguments of a function, or the fields and arguments of a class."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return {argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
    found: set[str] = set()
    for one in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            found.add(one.target.id)
        elif isinstance(one, ast.FunctionDef) and one.name == "__init__":
            found |= names_of(one)
    return found


def faults_of(node: Documented) -> Iterator[str]:
    """Yield the lines of a docstring that are indented too far."""
    names, indent = names_of(node), 4
    for line in inspect.cleandoc(ast.get_docstring(node, clean=False) or "").splitlines():
        if line.strip() in HEADINGS and line.startswith(" "):
            yield line.strip()
        entry = ENTRY.match(line)
        if entry is not None and len(entry[1]) > indent and set(entry[2].split(", ")) <= names:
            yield line.strip()


def test_entries_of_a_section_have_the_same_indentation() -> None:
    found = []
    for path in sorted((ROOT / "runner").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, Documented):
                found += [f"{path.relative_to(ROOT)}: {line}" for line in faults_of(node)]
    assert found == []
