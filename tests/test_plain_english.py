"""Docs, docstrings, comments and messages avoid the phrases of `tests.support.plain_english`.

`tests/plain_english.toml` holds the number of phrases that each folder still has. It may only fall: run
`python -m tests.test_plain_english` after you have rewritten a folder.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.support.plain_english import counts, findings, folder_of

_ALLOWED = Path(__file__).with_name("plain_english.toml")


def test_no_folder_gains_phrases_to_avoid() -> None:
    allowed = tomllib.loads(_ALLOWED.read_text(encoding="utf-8"))["phrases"]
    grown = {folder: count for folder, count in counts().items() if count > allowed.get(folder, 0)}
    places = [
        f"{found.path}:{found.line}: {found.phrase!r}: write {found.instead}"
        for found in findings()
        if folder_of(found.path) in grown
    ]
    assert not grown, "\n".join(
        [
            *places,
            *(
                f"{folder}: {count} phrases, expected at most {allowed.get(folder, 0)}"
                for folder, count in grown.items()
            ),
        ]
    )


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
    assert dict(counts(tmp_path)) == ({"README.md": 1, "runner/league": 2} if is_found else {})


if __name__ == "__main__":
    lines = [f'"{folder}" = {count}\n' for folder, count in sorted(counts().items())]
    _ALLOWED.write_text("".join(["[phrases]\n", *lines]), encoding="utf-8")
