"""Dotted paths are checked in source files; nothing is reported if the source is inconclusive."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.config.defaults import SchemaError, load_schema
from runner.config.errors import ConfigError
from runner.config.imports import import_target
from runner.config.source_definitions import declared_attribute
from runner.config.targets import find_target_fault

Package = Callable[[dict[str, str]], str]


@pytest.fixture
def make_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    def make(files: dict[str, str]) -> str:
        for name, text in {"__init__": "", **files}.items():
            path = tmp_path / "static_pkg" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()
        return "static_pkg"

    return make


KNOWN = {
    "class": ({"m": "class A:\n    def __init__(self, x): ..."}, "m.A", ["x"], ["y"]),
    "function": ({"m": "def a(x, *, z=1): ..."}, "m.a", ["x", "z"], ["y"]),
    "no constructor": ({"m": "class A: ..."}, "m.A", [], ["y"]),
    "inherited": (
        {"b": "class B:\n    def __init__(self, x): ...", "m": "from .b import B\nclass A(B): ..."},
        "m.A",
        ["x"],
        ["y"],
    ),
    "dataclass": (
        {"m": "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass A:\n    x: int = 1"},
        "m.A",
        ["x"],
        ["y"],
    ),
    "keyword-only fields": (
        {"m": "from dataclasses import KW_ONLY, dataclass\n@dataclass\nclass A:\n    x: int\n    _: KW_ONLY\n    z: X"},
        "m.A",
        ["x", "z"],
        ["y"],
    ),
    "class in a match": ({"m": "match 1:\n    case 1:\n        class A: ..."}, "m.A", [], ["y"]),
    "re-export": ({"__init__": "from static_pkg.m import A", "m": "class A: ..."}, "A", [], ["y"]),
    "function named as its module": (
        {"__init__": "from static_pkg.a import a", "a": "def a(x): ..."},
        "a",
        ["x"],
        ["y"],
    ),
    "lazy export": (
        {
            "__init__": "_EXPORTS: dict[str, str] = {'A': 'm'}\ndef __getattr__(name): ...",
            "m": "class A: ...",
        },
        "A",
        [],
        ["y"],
    ),
    "alias": (
        {"b": "class B: ...", "m": "import static_pkg.b as other\nclass A(other.B): ..."},
        "m.A",
        [],
        ["y"],
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_the_source_tells(name: str, make_package: Package) -> None:
    files, path, good, bad = KNOWN[name]
    target = f"{make_package(files)}.{path}"
    assert find_target_fault(target, good) is None
    fault = find_target_fault(target, bad)
    assert fault is not None
    assert "does not take the argument y" in fault.what


MIXIN = "class B:\n    def __init__(self, x=1, **others):\n        super().__init__(**others)\n"
UNKNOWABLE = {
    "keyword arguments": ({"m": "class A:\n    def __init__(self, **k): ..."}, "m.A"),
    "decorator": ({"m": "@register\nclass A:\n    def __init__(self, x): ..."}, "m.A"),
    "metaclass": ({"m": "class A(metaclass=M):\n    def __init__(self, x): ..."}, "m.A"),
    "new": ({"m": "class A:\n    def __new__(cls, x): ..."}, "m.A"),
    "assignment": ({"m": "A = make()"}, "m.A"),
    "star import": ({"m": "from os import *"}, "m.A"),
    "dynamic attributes": ({"m": "def __getattr__(name): ..."}, "m.A"),
    "guarded import": ({"m": "try:\n    from nowhere import A\nexcept ImportError:\n    A = None"}, "m.A"),
    "unknown base": ({"m": "from nowhere import B\nclass A(B): ..."}, "m.A"),
    "loop": ({"m": "for name in ('A', 'B'):\n    globals()[name] = make(name)"}, "m.A"),
    "update": ({"m": "globals().update(A=make())"}, "m.A"),
    "setattr": ({"m": "import sys\nsetattr(sys.modules[__name__], 'A', make())"}, "m.A"),
    "exec": ({"m": "exec('class A: ...')"}, "m.A"),
    "two branches": (
        {"m": "if X:\n    def A(y): ...\nelse:\n    def A(x): ..."},
        "m.A",
    ),
    "import or class": ({"m": "try:\n    from nowhere import A\nexcept ImportError:\n    class A: ..."}, "m.A"),
    "arguments passed to another base": (
        {"m": f"{MIXIN}class C:\n    def __init__(self, y): ...\nclass A(B, C): ..."},
        "m.A",
    ),
    "import in a circle": ({"m": "from static_pkg.n import A", "n": "from static_pkg.m import A"}, "m.A"),
    "inheritance in a circle": ({"m": "class A(A): ..."}, "m.A"),
    "syntax error": ({"m": "class A("}, "m.A"),
}


@pytest.mark.parametrize("name", UNKNOWABLE)
def test_what_the_source_cannot_tell(name: str, make_package: Package) -> None:
    files, path = UNKNOWABLE[name]
    assert find_target_fault(f"{make_package(files)}.{path}", ["y"]) is None


def test_a_property_hides_the_attribute_of_a_base(make_package: Package) -> None:
    package = make_package({"m": "class B:\n    reports = {}\nclass A(B):\n    @property\n    def reports(self): ..."})
    assert declared_attribute(f"{package}.m.B", "reports", f"{package}.m.B") == {}
    assert declared_attribute(f"{package}.m.A", "reports", f"{package}.m.B") is None


def test_an_unpacked_attribute_is_unknown(make_package: Package) -> None:
    package = make_package({"m": 'class B:\n    takes = ()\nclass A(B):\n    takes, gives = ("a",), ("b",)'})
    assert declared_attribute(f"{package}.m.A", "takes", f"{package}.m.B") is None


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("Name", "not the dotted path"),
        ("static_pkg.m", "is a module"),
        ("static_pkg.m.B", "static_pkg.m does not define B"),
        ("static_pkg.n.B", "static_pkg does not define n"),
        ("runner.piplines.ScaleRewards", "runner does not define piplines"),
        ("nowhere_at_all.B", "no package nowhere_at_all"),
        ("subprocess.call", "part of Python itself"),
    ],
)
def test_what_is_not_there(path: str, what: str, make_package: Package) -> None:
    make_package({"m": "class A: ..."})
    fault = find_target_fault(path)
    assert fault is not None
    assert what in fault.what


def test_a_namespace_package_in_a_namespace_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "namespace_pkg" / "inner"
    folder.mkdir(parents=True)
    (folder / "m.py").write_text("class A:\n    def __init__(self, x): ...")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_target_fault("namespace_pkg.inner.m.A", ["x"]) is None
    fault = find_target_fault("namespace_pkg.inner.m.A", ["y"])
    assert fault is not None
    assert "namespace_pkg.inner" not in sys.modules


def test_nothing_is_imported(make_package: Package) -> None:
    package = make_package({"m": "raise RuntimeError\nclass A: ..."})
    assert find_target_fault(f"{package}.m.A") is None
    assert find_target_fault("torch.nn.Linear", ["in_features"]) is None
    assert not any(name.startswith("static_pkg") for name in sys.modules)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import sys\nsys.exit(2)", r"one_schema cannot be imported: it ends the process \(exit code 2\)"),
        ("import math\nmath.no_such_name", "AttributeError: module 'math' has no attribute 'no_such_name'"),
        ("class Confih: ...", "module one_schema does not define Config; did you mean Confih?"),
    ],
)
def test_a_module_without_the_dataclass(text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one_schema.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "one_schema", raising=False)
    with pytest.raises(SchemaError, match=told):
        load_schema("one_schema.Config")


def test_a_script_that_exits_when_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "script_that_exits.py").write_text("import sys\n\nsys.exit(2)\n")
    monkeypatch.syspath_prepend(tmp_path)
    told = r"script_that_exits cannot be imported: it ends the process \(exit code 2\)"
    with pytest.raises(ConfigError, match=told):
        import_target("script_that_exits.A", "env._target_")
