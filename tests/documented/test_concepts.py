"""Links of docs pages lead to existing targets; the code that docs/explanation names exists."""

from __future__ import annotations

import ast
import copy
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from runner.experiment import build
from runner.experiment.trainer import Trainer
from runner.parts import Part
from tests.conftest import ROOT
from tests.structure.measures import calls_from_the_loop_to_the_loss

PAGES = sorted(str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
CONCEPTS = ROOT / "docs/explanation/concepts.md"
PARTS = ROOT / "docs/explanation/parts.md"
LINK = re.compile(r"\[([^\[\]]*)\]\(([^()\s]+)\)")
SMALL = (
    "env_runners.num_envs_per_env_runner=2",
    "algorithm.train_batch_size_per_learner=16",
    "algorithm.minibatch_size=null",
    "algorithm.num_epochs=1",
    "module.fcnet_hiddens=[4]",
    "evaluation=none",
    "tracking=none",
)


def links_of(page: Path) -> list[tuple[str, Path]]:
    """Return the text and the file of each link to a file of the repository."""
    found = LINK.findall(re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))
    files = [(text, link.partition("#")[0]) for text, link in found if "://" not in link]
    return [(text, page.parent / file) for text, file in files if file]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    assert not [str(file) for _, file in links_of(ROOT / page) if not file.exists()]


def names_defined_in(file: Path) -> set[str]:
    """Return the classes, functions and constants of a file, and `Class.method` of its methods."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            methods = {f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
            names |= {node.name, *methods}
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def test_linked_code_is_there() -> None:
    links = [*links_of(CONCEPTS), *links_of(PARTS)]
    named = [(text.strip("`"), file) for text, file in links if file.suffix == ".py"]
    assert len(named) > 60
    assert not [f"{name} in {file}" for name, file in named if name not in names_defined_in(file)]


def test_excerpts_are_in_the_source() -> None:
    text = CONCEPTS.read_text(encoding="utf-8")
    excerpts = re.findall(r"^ *```\w+\n *# ((?:runner|conf)/\S+)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    assert [file for file, _ in excerpts] == [
        "conf/algorithm/ppo.yaml",
        "runner/learners/learner.py",
        "runner/learners/ppo.py",
    ]
    for file, excerpt in excerpts:
        source = [line.strip() for line in (ROOT / file).read_text(encoding="utf-8").splitlines()]
        lines = [line.strip() for line in excerpt.splitlines()]
        assert any(source[at : at + len(lines)] == lines for at in range(len(source))), f"{excerpt} is not in {file}"


def test_calls_from_the_loop_to_the_loss(tmp_path: Path) -> None:
    text = CONCEPTS.read_text(encoding="utf-8")
    (named,) = re.findall(r"lead from the loop to the loss: (.*?)\.\n\n", text, re.DOTALL)
    calls = calls_from_the_loop_to_the_loss(tmp_path / "run")
    assert [name.strip("`") for name in named.split() if name != "→"] == calls
    assert len(calls) == 7


def test_example_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is saved, resumed, and reset when its settings change."""
    (example,) = [
        block
        for block in re.findall(r"^```python\n(.*?)^```", PARTS.read_text(), re.DOTALL | re.MULTILINE)
        if "(Part)" in block
    ]
    names: dict[str, Any] = {}
    exec(compile(example, "parts.md", "exec"), names)

    def trainer_with(decay: float) -> tuple[Trainer, Any]:
        part = names["WeightAverage"](decay)
        assert isinstance(part, Part)
        feature = SimpleNamespace(check=lambda specs: None, make_part=lambda parts: part)
        monkeypatch.setattr(build, "features_of", lambda config: [feature])
        return Trainer.from_experiment("ppo_cartpole", SMALL), part

    trainer, part = trainer_with(0.9)
    with trainer:
        (initial,) = (average.copy() for average in part.average.values())
        distance = trainer.train()["weight_average/distance/default_policy"]
        (weights,) = trainer.learners.get_weights().values()
        np.testing.assert_allclose(distance, 0.9 * np.abs(weights - initial).max(), rtol=1e-4)
        state = copy.deepcopy(trainer.get_state())
        expected = trainer.train()["weight_average/distance/default_policy"]
    trainer, part = trainer_with(0.9)
    with trainer:
        trainer.set_state(state)
        assert trainer.train()["weight_average/distance/default_policy"] == expected
    trainer, part = trainer_with(0.5)
    with trainer:
        trainer.set_state(state)
        np.testing.assert_array_equal(part.average["default_policy"], weights)
