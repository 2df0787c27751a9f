"""Docs, docstrings, comments and messages avoid the phrases of `tests.support.plain_english`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.plain_english import findings

# (file, phrase) -> why it stays.
EXCEPTIONS: dict[tuple[str, str], str] = {}


def test_texts_avoid_the_phrases() -> None:
    found = [
        f"{one.path}:{one.line}: {one.phrase!r}: write {one.instead}\n    {one.text}"
        for one in findings()
        if (one.path, one.phrase) not in EXCEPTIONS
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("Training goes on after the checkpoint.", True),
        ("Training continues after the checkpoint.", False),
        ("A file of one's own.", True),
        ("one row a step", True),
        ("one row per step", False),
        ("`x` is no number", True),
        ("There is no such module.", False),
        ("The option has no effect.", False),
        ("What is a plan?", False),
        ("`what is` quoted", False),
    ],
)
def test_phrases_are_found_in_docstrings_and_pages(tmp_path: Path, text: str, is_found: bool) -> None:
    (tmp_path / "README.md").write_text(f"# Title\n{text}\n```\n{text}\n```\n", encoding="utf-8")
    (tmp_path / "runner" / "league").mkdir(parents=True)
    (tmp_path / "runner" / "league" / "x.py").write_text(f'"""{text}"""\n\n# {text}\n', encoding="utf-8")
    assert [(one.path, one.line) for one in findings(tmp_path)] == (
        [("runner/league/x.py", 1), ("runner/league/x.py", 3), ("README.md", 2)] if is_found else []
    )
