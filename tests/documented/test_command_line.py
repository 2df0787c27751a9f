"""docs/reference/command_line.md agrees with the table of verbs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


def test_the_page_shows_the_table_of_verbs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "site")])
    from command_line_reference import PAGE, page

    assert Path(PAGE).read_text(encoding="utf-8") == page(), "python site/command_line_reference.py writes the page"
