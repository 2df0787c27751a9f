"""Definitions, imports and lazy exports of a module, read from its source file."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

Definitions = dict[str, ast.stmt]
_COMPOUND = (ast.If, ast.Try, ast.TryStar, ast.With, ast.For, ast.While, ast.Match)
# Functions that may define names of a module.
_DEFINING = ("exec", "setattr", "globals", "vars", "locals")


class UnknowableError(Exception):
    """The source cannot be analysed."""


class MissingNameError(Exception):
    """A module or name does not exist; `options` are the existing names, `fix` is advice if the package is missing."""

    def __init__(self, what: str, name: str, options: Iterable[str] = (), fix: str | None = None) -> None:
        super().__init__(what)
        self.name = name
        self.options = sorted(options)
        self.fix = fix


class SourceModule:
    """A module, parsed without importing it.

    `imports` maps a name to a module and the name in it (empty: the module itself); `exports` maps a lazily exported
    name to the module that defines it (`_EXPORTS` of a module with `__getattr__`). `ambiguous` contains names with
    several definitions, such as a class of an `except ImportError`.
    """

    def __init__(self, name: str, spec: ModuleSpec) -> None:
        self.name = name
        self.spec = spec
        self.definitions: Definitions = {}
        self.imports: dict[str, tuple[str, str | None]] = {}
        self.exports: dict[str, str] = {}
        self.ambiguous: set[str] = set()
        self._bound: dict[str, bool] = {}  # name of an import or a definition -> whether it is a definition
        self._has_star_import = False
        self._is_dynamic = False
        for statement in self._parse():
            self._add(statement)

    def _parse(self) -> Sequence[ast.stmt]:
        origin = self.spec.origin
        if origin is None and self.search_locations:
            return []  # a namespace package
        if origin is None or not origin.endswith(".py"):
            raise UnknowableError
        try:
            return _parse_file(Path(origin), Path(origin).stat().st_mtime_ns)
        except (OSError, SyntaxError, UnicodeDecodeError):
            raise UnknowableError from None

    @property
    def search_locations(self) -> list[str]:
        return list(self.spec.submodule_search_locations or [])

    @property
    def is_complete(self) -> bool:
        """Whether all names of the module are known."""
        if self._has_star_import or self._is_dynamic:
            return False
        return "__getattr__" not in self.definitions or "_EXPORTS" in self.definitions

    def defines(self, name: str) -> bool:
        return name in self.definitions or name in self.imports or name in self.exports

    @cached_property
    def submodules(self) -> set[str]:
        """Modules in the package; empty for a module that is not a package."""
        found = set()
        for folder in map(Path, self.search_locations):
            for path in folder.iterdir() if folder.is_dir() else []:
                is_package = path.is_dir() and path.name.isidentifier() and path.name != "__pycache__"
                is_extension = path.suffix in (".so", ".pyd")
                if is_package or path.suffix == ".py" or is_extension:
                    found.add(path.name.split(".")[0])
        return found - {"__init__"}

    def public_names(self) -> list[str]:
        """Classes and functions of the module, or its submodules if there are none."""
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        defined = {name for name, node in self.definitions.items() if isinstance(node, kinds)}
        if self.search_locations and not self.exports:
            defined |= {name for name, (module, _) in self.imports.items() if module.startswith(self.name)}
        names = defined | set(self.exports)
        return [name for name in names or self.submodules if not name.startswith("_")]

    def _add(self, statement: ast.stmt, is_conditional: bool = False) -> None:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self.definitions[statement.name] = statement
            self._bind(statement.name, True, is_conditional)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            self._add_assignment(statement)
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                bound = alias.asname or alias.name.split(".")[0]
                self.imports[bound] = (alias.name if alias.asname else bound, None)
        elif isinstance(statement, ast.ImportFrom):
            self._add_import_from(statement, is_conditional)
        elif isinstance(statement, ast.Expr):
            self._is_dynamic |= _may_define_names(statement.value)
        elif isinstance(statement, _COMPOUND):
            for inner in _inner_statements(statement):
                self._add(inner, is_conditional=True)

    def _bind(self, name: str, is_definition: bool, is_conditional: bool) -> None:
        """Note an import or a definition; among several in branches, the effective one is unknown."""
        is_earlier_definition = self._bound.get(name)
        if is_conditional and is_earlier_definition is not None and (is_definition or is_earlier_definition):
            self.ambiguous.add(name)
        self._bound[name] = is_definition or bool(is_earlier_definition)

    def _add_assignment(self, statement: ast.Assign | ast.AnnAssign) -> None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            self._is_dynamic |= isinstance(target, ast.Subscript) and _may_define_names(target.value)
            for name in ast.walk(target):
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                    self.definitions[name.id] = statement
                    if name.id == "_EXPORTS" and isinstance(statement.value, ast.Dict):
                        self._add_exports(statement.value)

    def _add_exports(self, table: ast.Dict) -> None:
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                module = str(value.value).lstrip(".")
                is_absolute = module == self.name or module.startswith(f"{self.name.split('.')[0]}.")
                self.exports[str(key.value)] = module if is_absolute else f"{self.name}.{module}"

    def _add_import_from(self, statement: ast.ImportFrom, is_conditional: bool) -> None:
        base = statement.module or ""
        if statement.level:
            package = self.name.split(".") if self.search_locations else self.name.split(".")[:-1]
            parents = package[: len(package) - statement.level + 1]
            base = ".".join([*parents, *([base] if base else [])])
        if base == self.name:
            return  # a package that imports its submodules
        for alias in statement.names:
            if alias.name == "*":
                self._has_star_import = True
            else:
                self.imports[alias.asname or alias.name] = (base, alias.name)
                self._bind(alias.asname or alias.name, False, is_conditional)


def _inner_statements(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the statements of all branches of a compound statement."""
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
            yield from child.body


def _may_define_names(expression: ast.expr) -> bool:
    """Return whether an expression is a call such as `exec(...)`, `globals()` or `globals().update(...)`."""
    return isinstance(expression, ast.Call) and ast.unparse(expression.func).partition("(")[0] in _DEFINING


def open_module(name: str) -> SourceModule:
    """Return the module with this name without importing it; raises `MissingNameError` or `UnknowableError`."""
    return SourceModule(name, _find_spec(name))


def is_path_into_package(text: str) -> bool:
    """Return whether a string is a dotted path that starts with an importable package or module."""
    top, *others = text.split(".")
    if not others or not all(part.isidentifier() for part in (top, *others)):
        return False
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False


@lru_cache(maxsize=256)
def _parse_file(path: Path, _modified_ns: int) -> Sequence[ast.stmt]:
    return ast.parse(path.read_text(encoding="utf-8")).body


def _find_spec(name: str) -> ModuleSpec:
    parent, _, leaf = name.rpartition(".")
    fix = None
    if parent:
        locations = list(_find_spec(parent).submodule_search_locations or [])
        # Search the last part only: for the full name, Python would import the parent of a namespace package.
        spec = PathFinder.find_spec(leaf, locations)
        what = f"package {parent} does not contain a module {leaf}"
    else:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            raise UnknowableError from None
        what = f"there is no package {name} in the working directory, in PYTHONPATH, or installed"
        fix = (
            f"run the command in the folder that contains {name}, add this folder to PYTHONPATH, or install the package"
        )
    if spec is None:
        raise MissingNameError(what, leaf, fix=fix)
    return spec
