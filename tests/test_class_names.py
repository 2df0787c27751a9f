"""No public class name of `runner` means two things: a traceback and a search lead to the one class of that name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_no_two_public_classes_have_the_same_name() -> None:
    files_of: dict[str, list[str]] = defaultdict(list)
    for file in sorted((ROOT / "runner").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files_of[node.name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert len(files_of) > 300  # so that an empty folder does not pass
    twice = {name: files for name, files in files_of.items() if len(files) > 1}
    assert not twice, f"give these classes names of their own: {twice}"
