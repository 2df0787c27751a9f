"""The reference is whole: blocks that a user writes and public names are on its pages; tables have RLlib's names."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Iterator
from itertools import pairwise

import pytest

import runner.config
from runner.config.compose import compose_experiment
from runner.config.fields import option_of
from tests.conftest import ROOT
from tests.documented.test_algorithm_pages import FAMILIES

# Bases of blocks: their fields are in the tables of the blocks.
BASES = {
    "runner.config.algorithms.SoftActorCriticConfig",
    "runner.config.algorithms.TargetNetworksConfig",
    *(f"runner.config.operators.{name}Config" for name in ("AsyncRequests", "Branches", "Buffer", "Operator")),
}
# Package -> the page that has its names.
PAGES = {
    "runner.callbacks": "components",
    "runner.environments": "environments",
    "runner.modules": "components",
    "runner.pipelines": "components",
    "runner.plans": "components",
    "runner.replay": "components",
}
# What runs make, and users do not.
OF_RUNS = {"runner.callbacks": {"Callbacks", "build_callbacks"}}


def page(name: str) -> str:
    return (ROOT / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8")


def directives(text: str, kind: str) -> list[str]:
    """Return the arguments of a kind of directive."""
    return re.findall(rf"{kind} (\S+)$", text, re.MULTILINE)


def blocks() -> set[str]:
    """Return the dotted paths of dataclasses with options in the package of configurations."""
    names = [module.name for module in pkgutil.walk_packages(runner.config.__path__, "runner.config.")]
    classes = [value for name in names for value in vars(importlib.import_module(name)).values()]
    schemas = [cls for cls in classes if isinstance(cls, type) and dataclasses.is_dataclass(cls)]
    return {f"{cls.__module__}.{cls.__name__}" for cls in schemas if any(map(option_of, dataclasses.fields(cls)))}


def blocks_of_algorithms() -> set[str]:
    """Return the dotted paths of the blocks whose fields are on the pages of algorithms."""
    names = [name for family in FAMILIES for name in directives(page(family), r"^```\{(?:plan|fields)\}")]
    return {compose_experiment([f"algorithm={name}"]).values["algorithm"]["schema"] for name in names}


def test_every_block_is_in_the_reference() -> None:
    shown = directives(page("configuration") + page("components"), r"^```\{configuration\}")
    assert len(shown) == len(set(shown))
    of_operators = {path for path in shown if path.startswith("runner.config.operators.")}
    assert set(shown) | blocks_of_algorithms() | BASES == blocks() | of_operators | BASES
    assert not BASES & set(shown)


@pytest.mark.parametrize("package", PAGES)
def test_every_public_name_is_in_the_reference(package: str) -> None:
    text = page(PAGES[package])
    paths = directives(text, r"^\.\. (?:auto\w+|py:data)::") + directives(text, r"^```\{configuration\}")
    shown = {path.rpartition(".")[2] for path in paths}
    shown |= {name.removesuffix("Config") for name in shown}
    names = set(importlib.import_module(package).__all__)
    assert names - shown == OF_RUNS.get(package, set())


def test_tables_have_rllibs_names_where_they_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(ROOT / "site")
    reference = importlib.import_module("configuration_reference")
    learners = reference.table_of(importlib.import_module("runner.config.blocks").LearnersConfig)
    assert learners.startswith("| field | default | values | meaning | RLlib |\n| --- | --- | --- | --- | --- |\n")
    rows = {line.split("`")[1]: line for line in learners.splitlines()[2:]}
    assert rows["compile"].endswith("| `torch_compile_learner` |")
    assert rows["num_learners"].endswith("|  |")
    algorithm = importlib.import_module("runner.config.algorithms")
    beyond = reference.table_of(algorithm.PPOConfig, algorithm.AlgorithmConfig)
    assert "| `clip_param` | `0.3` | > 0 | epsilon of the clipped surrogate |\n" in beyond
    assert "`minibatching`" not in beyond
    assert "RLlib |" not in reference.table_of(importlib.import_module("runner.config.sweep").SweepConfig)


def attributes_with_comments_only(source: str) -> Iterator[str]:
    """Yield public attributes of public classes whose description the generated reference does not show."""
    lines = source.splitlines()
    for part in ast.walk(ast.parse(source)):
        if not isinstance(part, ast.ClassDef) or part.name.startswith("_"):
            continue
        described = re.findall(r"^ {4}(\w+(?:, \w+)*):", ast.get_docstring(part) or "", re.MULTILINE)
        for node, after in pairwise([*part.body, ast.Pass()]):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            name = getattr(targets[0], "id", "_")
            has_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            has_comment = re.match(r"\s+# (?!--)", lines[node.lineno - 2])
            if has_comment and not (name.startswith("_") or has_text or name in ", ".join(described).split(", ")):
                yield f"{part.name}.{name}"


def test_attributes_are_described_in_docstrings() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "runner").rglob("*.py")}
    found = {str(path): names for path, text in sources.items() if (names := list(attributes_with_comments_only(text)))}
    assert not found


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("    # Columns.\n    reads: tuple = ()\n", ["Base.reads"]),
        ("    # Columns.\n    reads = ()\n    # Others.\n    writes = ()\n", ["Base.reads", "Base.writes"]),
        ('    # A reason.\n    reads = ()\n    """Columns."""\n', []),
        ("    # A reason.\n    _reads = ()\n", []),
        ('    """Base.\n\n    Attributes:\n        reads: columns.\n    """\n\n    # A reason.\n    reads = ()\n', []),
    ],
)
def test_attributes_with_comments_only_are_found(body: str, expected: list[str]) -> None:
    assert list(attributes_with_comments_only(f"class Base:\n{body}")) == expected
