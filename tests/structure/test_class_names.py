"""No public class name of `runner` means two things: a traceback and a search lead to the one class of that name."""

from __future__ import annotations

from pathlib import Path

from tests.structure.measures import classes_by_name

ROOT = Path(__file__).parents[2]


def test_no_two_public_classes_have_the_same_name() -> None:
    files_of = classes_by_name(ROOT)
    assert len(files_of) > 300  # so that an empty folder does not pass
    twice = {name: files for name, files in files_of.items() if len(files) > 1}
    assert not twice, f"rename all but one: {twice}"
