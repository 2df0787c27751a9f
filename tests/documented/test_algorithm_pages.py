"""Every algorithm has a page with its equations, plan, fields, differences from the paper, and results."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "algorithms").glob("*.md")}
PAGES.pop("index")
SECTIONS = ["Plan", "Fields", "Differences from the paper", "Results"]


def named_by(directive: str, page: str) -> list[str]:
    """Return the arguments of all blocks of a directive."""
    return [name for names in re.findall(rf"^```{{{directive}}} (.+)$", page, re.MULTILINE) for name in names.split()]


@pytest.mark.parametrize("name", sorted(PAGES))
def test_page_has_all_parts(name: str) -> None:
    page = PAGES[name]
    before, *_ = page.split("## Plan")
    assert "```text\n" in before, "no equations"
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == SECTIONS
    assert set(named_by("plan", page)) <= set(named_by("results", page))
    assert named_by("plan", page)


def test_every_algorithm_is_on_one_page() -> None:
    named = sorted(name for page in PAGES.values() for name in named_by("results", page))
    assert named == sorted(path.stem for path in (ROOT / "conf" / "algorithm").glob("*.yaml"))
