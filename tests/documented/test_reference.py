"""The reference is whole: blocks that a user writes and public names are on its pages; tables have RLlib's names."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re

import pytest

import runner.config
from runner.config.fields import option_of
from tests.conftest import ROOT

# Bases of blocks: their fields are in the tables of the blocks.
BASES = {
    "runner.config.algorithms.TargetNetworksConfig",
    *(f"runner.config.operators.{name}Config" for name in ("AsyncRequests", "Branches", "Buffer", "Operator")),
}
# Package -> the pages that have its names.
PAGES = {
    "runner.callbacks": ["callbacks"],
    "runner.environments": ["environments"],
    "runner.modules": ["modules"],
    "runner.pipelines": ["pieces"],
    "runner.plans": ["plans", "operators"],
    "runner.replay": ["replay"],
}
# What runs make, and users do not.
OF_RUNS = {"runner.callbacks": {"Callbacks", "EpisodeCallbacks", "ReceivedCallbacks", "build_callbacks"}}


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


def test_every_block_is_in_the_reference() -> None:
    shown = directives(page("configuration") + page("operators"), r"^```\{configuration\}")
    assert len(shown) == len(set(shown))
    of_operators = {path for path in shown if path.startswith("runner.config.operators.")}
    assert set(shown) | BASES == blocks() | of_operators | BASES
    assert not BASES & set(shown)


@pytest.mark.parametrize("package", PAGES)
def test_every_public_name_is_in_the_reference(package: str) -> None:
    text = "".join(map(page, PAGES[package]))
    paths = directives(text, r"^\.\. (?:auto\w+|py:data)::") + directives(text, r"^```\{configuration\}")
    shown = {path.rpartition(".")[2] for path in paths}
    shown |= {name.removesuffix("Config") for name in shown}
    names = set(importlib.import_module(package).__all__)
    assert names - shown == OF_RUNS.get(package, set())


def test_tables_have_rllibs_names_where_they_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(ROOT / "site")
    reference = importlib.import_module("configuration_reference")
    learners = reference.table_of(importlib.import_module("runner.config.schemas").LearnersConfig)
    assert learners.startswith("| field | default | values | meaning | RLlib |\n| --- | --- | --- | --- | --- |\n")
    rows = {line.split("`")[1]: line for line in learners.splitlines()[2:]}
    assert rows["compile"].endswith("| `torch_compile_learner` |")
    assert rows["num_learners"].endswith("|  |")
    algorithm = importlib.import_module("runner.config.algorithms")
    beyond = reference.table_of(algorithm.PPOConfig, algorithm.AlgorithmConfig)
    assert "| `clip_param` | `0.3` | > 0 | epsilon of the clipped surrogate |\n" in beyond
    assert "`minibatching`" not in beyond
    assert "RLlib |" not in reference.table_of(importlib.import_module("runner.config.sweep").SweepConfig)
