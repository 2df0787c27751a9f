"""The table of outcomes goes into its section of a document, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.table import Row, write_table

DOCUMENT = """# Reliability

## Fault injection

What is injected.

<!-- outcomes of `make chaos` -->
old
<!-- end of outcomes -->

## Locks

Another section.
"""


def test_the_table_replaces_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "reliability.md"
    path.write_text(DOCUMENT)
    for seed in ("6", "7"):
        write_table(path, [Row("full disk", ("disk full", "a | b", "disk full"), "resumed", 6.4)], seed)
    table = (
        "`CHAOS_SEED=7`\n\n| scenario | injections | outcome | seconds |\n| --- | --- | --- | ---: |\n"
        "| full disk | 2 x disk full; a \\| b | resumed | 6 |"
    )
    assert path.read_text() == DOCUMENT.replace("old", table)


def test_a_document_without_the_section_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "reliability.md"
    path.write_text("# Reliability\n")
    with pytest.raises(ValueError, match="no section"):
        write_table(path, [], "7")
    assert path.read_text() == "# Reliability\n"
