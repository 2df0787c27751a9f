"""The table of algorithms in README.md and docs/reference/algorithms.md agrees with the code and the stored results."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.config.paths import conf_dir, list_options
from tests.support import algorithm_table


def test_every_algorithm_has_a_row() -> None:
    assert sorted(algorithm_table.ROWS) == sorted(list_options([conf_dir()], "algorithm"))


def test_results_are_the_stored_ones() -> None:
    results = {name: ", ".join(algorithm_table.results_of(name)) for name in algorithm_table.ROWS}
    shown = [line.strip("|").split("|") for line in algorithm_table.table_in("README.md").splitlines()[2:]]
    assert {cells[0].split("`")[1]: cells[-1].strip() for cells in shown} == results


def test_both_pages_show_the_same_rows() -> None:
    readme, page = (algorithm_table.table_in(name) for name in algorithm_table.PAGES)
    assert readme.replace("](docs/reference/", "](") == page


@pytest.mark.slow
def test_pages_show_what_can_be_built(tmp_path: Path) -> None:
    algorithm_table.record_all(tmp_path)
    rows = algorithm_table.rows_of_table(tmp_path)
    for page, prefix in algorithm_table.PAGES.items():
        assert algorithm_table.table_in(page) == algorithm_table.table_of(rows, prefix)
