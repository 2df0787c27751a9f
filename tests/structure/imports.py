"""Which modules import which, read from the sources: imports in functions and for type checking count."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


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
