"""No module of `runner` imports itself through others, including imports in functions and for type checking."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_runner_has_no_import_cycle() -> None:
    graph = import_graph(ROOT, "runner")
    assert len(graph) > 300  # so that an empty folder does not pass
    cycle = shortest_cycle(graph)
    assert cycle is None, f"import cycle: {' -> '.join(cycle)}; move what both need into a module of its own"


def test_env_runners_start_without_hydra() -> None:
    builders = ", ".join(f"runner.experiment.{name}_builder" for name in ("env_runner", "league", "curriculum"))
    code = f"import sys, {builders}; sys.exit(' '.join({{'hydra', 'omegaconf'}} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a.py": "from pkg import b", "b.py": "import pkg.c"}, None),
        ({"a.py": "from pkg import b", "b.py": "import pkg.a"}, ["pkg.a", "pkg.b", "pkg.a"]),
        ({"a.py": "from pkg.b import f", "b.py": "def f():\n    from .a import x"}, ["pkg.a", "pkg.b", "pkg.a"]),
        (
            {
                "a.py": "from pkg import b",
                "b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pkg.a",
            },
            ["pkg.a", "pkg.b", "pkg.a"],
        ),
        ({"sub/__init__.py": "from .a import x", "sub/a.py": "from pkg.sub import b", "sub/b.py": ""}, None),
        ({"sub/__init__.py": "from .a import x", "sub/a.py": "from . import x"}, ["pkg.sub", "pkg.sub.a", "pkg.sub"]),
        (
            {
                "a.py": "import pkg.b",
                "b.py": "import pkg.c",
                "c.py": "import pkg.a, pkg.d",
                "d.py": "class D:\n    import pkg.c",
            },
            ["pkg.c", "pkg.d", "pkg.c"],
        ),
    ],
    ids=["chain", "cycle", "in function", "type checking", "package of submodules", "name of package", "shortest"],
)
def test_finds_the_shortest_cycle(tmp_path: Path, files: Mapping[str, str], expected: list[str] | None) -> None:
    for name, text in {"__init__.py": "", "c.py": "", **files}.items():
        file = tmp_path / "pkg" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert shortest_cycle(import_graph(tmp_path, "pkg")) == expected


def import_graph(root: Path, package: str) -> dict[str, set[str]]:
    """Return module -> imported modules of the same package, from the sources below `root`.

    A package counts as imported where a name of its `__init__` is; not where only a submodule is.
    """
    files = {_module_name(file.relative_to(root)): file for file in sorted((root / package).rglob("*.py"))}
    return {module: set(_imported_modules(module, file, files.keys())) - {module} for module, file in files.items()}


def shortest_cycle(graph: Mapping[str, set[str]]) -> list[str] | None:
    """Return the modules of a shortest cycle, the first one again at the end; None if there is no cycle."""
    cycles = [cycle for module in graph if (cycle := _cycle_through(module, graph))]
    return min(cycles, key=len, default=None)


def _cycle_through(start: str, graph: Mapping[str, set[str]]) -> list[str] | None:
    importer_of: dict[str, str] = {}
    waiting = deque([start])
    while waiting:
        module = waiting.popleft()
        for imported in sorted(graph[module] - importer_of.keys()):
            importer_of[imported] = module
            if imported == start:
                return _path_back(start, importer_of)
            waiting.append(imported)
    return None


def _path_back(start: str, importer_of: Mapping[str, str]) -> list[str]:
    path = [start, importer_of[start]]
    while path[-1] != start:
        path.append(importer_of[path[-1]])
    return path[::-1]


def _module_name(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported_modules(module: str, file: Path, modules: Sequence[str] | set[str]) -> Iterator[str]:
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    imports = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Import | ast.ImportFrom))
    for node in imports:
        for name in _imported_names(node, package):
            found = name if name in modules else name.rpartition(".")[0]
            if found in modules:
                yield found


def _imported_names(node: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    """Return the absolute names, of modules or of names in them."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    ancestors = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
    origin = ".".join([*ancestors, *([node.module] if node.module else [])])
    return [f"{origin}.{alias.name}" for alias in node.names]
