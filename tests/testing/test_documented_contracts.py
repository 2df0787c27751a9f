"""The checks in docs/reference/components.md run, and raise the errors that the page shows."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import runner.testing
from runner.config.errors import Problem
from runner.pipelines import Connector
from runner.testing import BrokenContract, check_connector
from tests.conftest import ROOT
from tests.offline.formats.recordings import make_table

PAGE = (ROOT / "docs/reference/components.md").read_text(encoding="utf-8").partition("\n## Test your components\n")[2]
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: re.findall(r"^check_\w+|= (check_\w+)", text, re.M)[-1])
def test_example(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recorded").mkdir()
    make_table(tmp_path / "recorded" / "table")
    exec(compile(example, "contracts.md", "exec"), {"__name__": "example"})


@pytest.mark.parametrize(
    ("page", "section"),
    [
        ("tutorials/custom_algorithm", ""),
        ("guides/callbacks_and_metrics", "Write a custom callback"),
        ("guides/connectors_and_networks", "Write a custom module"),
        ("guides/connectors_and_networks", "Write a custom connector"),
    ],
)
def test_custom_components_keep_the_contracts(page: str, section: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each section names the folder of each example, and checks each example; all code that it shows is run."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    if section:
        text = re.split(r"^## ", text.partition(f"\n## {section}\n")[2], flags=re.MULTILINE)[0]
    folders = re.findall(r"^cd (examples/\w+)$", text, re.M)
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert sum("runner.testing" in block for block in blocks) == len(folders) > 0
    for folder in folders:
        monkeypatch.syspath_prepend(ROOT / folder)
    example = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", example)  # where dataclasses look for what their fields name
    for block in blocks:
        exec(compile(block, f"{page}.md", "exec"), vars(example))


def test_every_check_is_documented_and_exported() -> None:
    checks = {name for name in runner.testing.__all__ if name.startswith("check_")}
    assert {name for name in checks if f"| `{name}` |" in PAGE} == checks
    assert {name for example in EXAMPLES for name in re.findall(r"import (check_\w+)", example)} == checks
    assert all(callable(getattr(runner.testing, name)) for name in runner.testing.__all__)
    with pytest.raises(AttributeError, match="check_everything"):
        _ = runner.testing.check_everything


class Doubled(Connector):
    """Doubles observations in place, of the episodes and of the batch."""

    def __call__(self, *, batch: dict[str, Any], episodes: Any, **kwargs: Any) -> dict[str, Any]:
        batch["obs"] = batch["obs"] * 2
        episodes.current_obs[:] *= 2
        return batch


def test_what_a_broken_contract_says() -> None:
    with pytest.raises(BrokenContract) as caught:
        check_connector(Doubled, "env_to_module")
    problems = (
        Problem("column obs is changed but not declared in `writes`", "writes", "()"),
        Problem(
            "the connector writes into obs of the episodes",
            "__call__",
            fix="change a copy in the batch, or set observations by `write_obs`, with writes_obs_to_episodes = True",
        ),
    )
    assert caught.value.problems == problems
    paragraphs = [problem.render(number) for number, problem in enumerate(problems, start=1)]
    assert str(caught.value) == "\n\n".join(["Doubled breaks 2 rules of its contract", *paragraphs])
