"""Every algorithm has a section with its equations, plan, fields, differences from the paper, and results."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

FAMILIES = ("policy_gradient", "value_based", "continuous_control", "offline_algorithms", "multi_agent_algorithms")
# Title of a section -> its text.
PAGES = {
    text.partition("\n")[0]: text
    for family in FAMILIES
    for text in re.split(
        r"^## ", (ROOT / f"docs/reference/{family}.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )[1:]
    if not text.startswith(("Limitations", "Next steps"))
}
SECTIONS = ["Plan", "Fields", "Differences from the paper", "Results"]


def named_by(directive: str, page: str) -> list[str]:
    """Return the arguments of all blocks of a directive."""
    return [name for names in re.findall(rf"^```{{{directive}}} (.+)$", page, re.MULTILINE) for name in names.split()]


@pytest.mark.parametrize("name", sorted(PAGES))
def test_section_has_all_parts(name: str) -> None:
    page = PAGES[name]
    before, *_ = page.split("### Plan")
    assert "```{math}\n" in before, "no equations"
    assert re.findall(r"^### (.+)$", page, re.MULTILINE) == SECTIONS
    assert set(named_by("plan", page)) <= set(named_by("results", page))
    assert named_by("plan", page)
    assert set(named_by("fields", page)) <= set(named_by("results", page))


def test_every_algorithm_has_one_section() -> None:
    named = sorted(name for page in PAGES.values() for name in named_by("results", page))
    assert named == sorted(path.stem for path in (ROOT / "conf" / "algorithm").glob("*.yaml"))
