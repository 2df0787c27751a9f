"""Only `runner.compat` uses private names of other packages."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType

import pytest
from torch import nn

import runner

ROOT = Path(__file__).parents[2]
PACKAGES = ("runner",)
# Private in spelling only: Python and Hydra document them.
DOCUMENTED = {"_asdict", "_fields", "_getframe", "_make", "_replace", "_target_"}
_MODULE_IN_TEXT = re.compile(r"[a-z]\w*(\.\w+)*\._[a-z]\w*(\.\w+)*")
_BY_NAME = ("delattr", "getattr", "hasattr", "setattr")


def test_private_names_of_other_packages_are_in_compat_alone() -> None:
    texts = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if not path.is_relative_to(ROOT / "runner" / "compat")
    }
    assert len(texts) > 300  # so that an empty folder does not pass
    assert foreign_private_names(texts) == []


@pytest.mark.slow
def test_no_class_outside_compat_overrides_a_private_method_of_another_package() -> None:
    modules = [name for _, name, _ in pkgutil.walk_packages(runner.__path__, "runner.") if ".compat" not in name]
    overridden = []
    for module in (importlib.import_module(name) for name in modules if not name.endswith("__main__")):
        classes = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
        overridden += [f"{one.__qualname__}.{name}" for one in classes for name in overridden_names(one)]
    assert overridden == []


def overridden_names(class_: type) -> Iterator[str]:
    """Yield the private methods of a class that override those of another package, Python's own excepted."""
    own = [name for name, value in vars(class_).items() if is_private(name) and isinstance(value, FunctionType)]
    for base in class_.__mro__[1:]:
        package = base.__module__.split(".")[0]
        if package not in (*PACKAGES, *sys.stdlib_module_names):
            yield from (name for name in own if name in vars(base))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in DOCUMENTED


@dataclass
class Names:
    """Names that files define.

    Attributes:
        anywhere: private names of functions, classes, attributes, variables and parameters.
        of_classes: class -> its base classes, and the private names that it defines.
    """

    anywhere: set[str] = field(default_factory=set)
    of_classes: dict[str, tuple[list[str], set[str]]] = field(default_factory=dict)

    def are_foreign_to(self, class_name: str) -> bool:
        """Return whether a class has a base class, however far, that these files do not define."""
        bases, _ = self.of_classes[class_name]
        return any(base not in self.of_classes or self.are_foreign_to(base) for base in bases)

    def of_class(self, class_name: str) -> set[str]:
        """Return the private names of a class and its base classes."""
        bases, own = self.of_classes.get(class_name, ([], set()))
        return own.union(*(self.of_class(base) for base in bases))


def foreign_private_names(texts: Mapping[str, str]) -> list[str]:
    """Return `file:line: name` of each use of a private name that none of the files defines."""
    trees = {name: ast.parse(text) for name, text in texts.items()}
    names = Names()
    for tree in trees.values():
        names.anywhere |= _defined(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases, own = names.of_classes.setdefault(node.name, ([], set()))  # of all classes with this name
                bases += [base for base in map(_last_name, node.bases) if base not in (*_PLAIN_BASES, node.name)]
                own |= _defined(node)
    return [
        f"{name}:{line}: {used}" for name, tree in trees.items() for line, used in sorted(set(_uses(tree, names, None)))
    ]


# Bases without private attributes.
_PLAIN_BASES = {"ABC", "Enum", "Exception", "Generic", "NamedTuple", "Protocol", "object"}


def _last_name(base: ast.expr) -> str:
    base = base.value if isinstance(base, ast.Subscript) else base
    return base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else "?"


def _defined(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            names.add(node.attr)
    return {name for name in names if is_private(name)}


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _uses(node: ast.AST, names: Names, class_name: str | None) -> Iterator[tuple[int, str]]:
    """Yield line and name of each use; `class_name` is the class around the node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _uses(child, names, child.name)
            continue
        yield from ((child.lineno, used) for used in _used(child, names, class_name))  # type: ignore[attr-defined]
        yield from _uses(child, names, class_name)


def _used(node: ast.AST, names: Names, class_name: str | None) -> Sequence[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if _is_foreign_module(alias.name)]
    if isinstance(node, ast.ImportFrom):
        used = [] if node.level else [f"{node.module}.{alias.name}" for alias in node.names]
        return [name for name in used if _is_foreign_module(name)]
    if isinstance(node, ast.Attribute) and is_private(node.attr):
        is_known = node.attr in names.anywhere
        if is_known and class_name is not None and _is_self(node.value) and names.are_foreign_to(class_name):
            is_known = node.attr in names.of_class(class_name)
        return [] if is_known else [ast.unparse(node)]
    if isinstance(node, ast.Call):
        return [*_unknown_keywords(node, names), *_unknown_attribute(node, names)]
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and _MODULE_IN_TEXT.fullmatch(node.value):
        return [node.value] if _is_foreign_module(node.value) else []
    return []


def _is_foreign_module(name: str) -> bool:
    first, *rest = name.split(".")
    return first not in (*PACKAGES, "self") and any(map(is_private, (first, *rest)))


def _unknown_keywords(call: ast.Call, names: Names) -> list[str]:
    keywords = [keyword.arg for keyword in call.keywords if keyword.arg is not None]
    return [f"{name}=" for name in keywords if is_private(name) and name not in names.anywhere]


def _unknown_attribute(call: ast.Call, names: Names) -> list[str]:
    if not (isinstance(call.func, ast.Name) and call.func.id in _BY_NAME and len(call.args) > 1):
        return []
    name = call.args[1].value if isinstance(call.args[1], ast.Constant) else None
    return [ast.unparse(call)] if isinstance(name, str) and is_private(name) and name not in names.anywhere else []


@pytest.mark.parametrize(
    ("line", "used"),
    [
        ("import torch._dynamo", "torch._dynamo"),
        ("from ray._private import worker", "ray._private.worker"),
        ("from torch.utils import _pytree", "torch.utils._pytree"),
        ("node = config._get_node('a')", "config._get_node"),
        ("from_module = torch._C", "torch._C"),
        ("ray.init(_temp_dir='/tmp')", "_temp_dir="),
        ("executor = getattr(dataset, '_current_executor', None)", "getattr(dataset, '_current_executor', None)"),
        ("name = 'ray._private.worker'", "ray._private.worker"),
        ("class A(nn.Module):\n    def f(self):\n        self._modules", "self._modules"),
        ("class A(nn.Module): ...\nclass B(A):\n    def f(self):\n        self._modules", "self._modules"),
    ],
)
def test_finds_a_private_name(line: str, used: str) -> None:
    other = "class Group:\n    def __init__(self):\n        self._modules = []"
    [found] = foreign_private_names({"a.py": line, "b.py": other})
    assert found == f"a.py:{len(line.splitlines())}: {used}"


def test_finds_an_overridden_private_method() -> None:
    class Layer(nn.Module):
        def _apply(self, fn: object) -> None: ...
        def _own(self) -> None: ...

    assert list(overridden_names(Layer)) == ["_apply"]


@pytest.mark.parametrize(
    "text",
    [
        "from runner.a import _b",
        "import runner._a",
        "class A:\n    def __init__(self):\n        self._a = 1\n\ndef f(a):\n    return a._a",
        "class A(nn.Module):\n    _a: int\n    def f(self):\n        return self._a",
        "class A(nn.Module):\n    def __init__(self):\n        self._a = 1\nclass B(A):\n    a = lambda self: self._a",
        "class A:\n    def f(self):\n        return self._asdict(), sys._getframe(), self.__class__",
        "def f(_a): ...\nf(_a=1)",
        "text = 'runner/_a'",
    ],
)
def test_private_names_of_its_own_are_free(text: str) -> None:
    assert foreign_private_names({"a.py": text}) == []
