"""Pages in a real browser: every chart is drawn, nothing complains, tables can be ordered."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from runner import fit
from runner.experiment.trainer import Trainer
from runner.pages.page import render
from runner.pages.run_page import run_page
from runner.pages.run_record import read_run
from runner.report.sweep_page import sweep_page
from runner.report.sweep_record import read_sweep
from runner.sweep.trials import SweepFolder
from tests.conftest import WAIT_S
from tests.report.browser import BROWSER, NAMES
from tests.report.folders import progress_line, replay_line, write_everything, write_run

pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser on PATH: {', '.join(NAMES)}")

# Appended to a page, in place of a reader: orders the first table that can be ordered by its second column, twice.
_CLICKS = """
const header = document.querySelector("table.sortable th:nth-child(1) button");
header.click();
const column = () => [...header.closest("table").tBodies[0].rows].map((row) => row.cells[0].textContent);
const ascending = column();
header.click();
document.documentElement.dataset.ordered = JSON.stringify([ascending, column()]);
"""


def visit(html: str, folder: Path) -> tuple[str, list[str]]:
    """The page's elements after it has been drawn, and what the browser's console says."""
    file = folder / "page.html"
    file.write_text(html)
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    command += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=20000", "--dump-dom", file.as_uri()]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    return ended.stdout, [line for line in ended.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize("kind", ["sweep", "run"])
def test_every_chart_is_drawn(kind: str, tmp_path: Path) -> None:
    if kind == "sweep":
        page = sweep_page(read_sweep(SweepFolder.open(write_everything(tmp_path / "s"))))
    else:
        page = run_page(read_run(write_run(tmp_path / "r", [replay_line(number, "a", "b") for number in range(1, 30)])))
    dom, complaints = visit(render(page), tmp_path)
    assert complaints == []
    assert 'data-charts="drawn"' in dom
    drawn = re.findall(r'<div class="chart.*?<svg[^>]*class="marks"', dom, flags=re.DOTALL)
    assert len(drawn) == len(page.figures) > 3
    assert dom.count('class="marks"') == len(page.figures)


def test_the_matrix_of_a_league_has_a_cell_for_each_pair_that_played(tmp_path: Path) -> None:
    overrides = [
        "algorithm.train_batch_size_per_learner=500",
        "algorithm.minibatch_size=null",
        "league.snapshot_every=400",
        "evaluation.evaluation_interval=4",
        "stop.training_iteration=4",
        "tracking=none",
    ]
    with Trainer.from_experiment("ppo_league_tictactoe", overrides) as trainer:
        run_dir = fit(trainer, tmp_path / "run").path
    standings = json.loads((run_dir / "league" / "standings.json").read_text())
    pairs = [(row["player"], other) for row in standings for other in row["games"]]
    dom, complaints = visit(render(run_page(read_run(run_dir))), tmp_path)
    assert complaints == []
    matrix = re.search(r'id="[^"]*league_scores.*?</svg>', dom, flags=re.DOTALL)
    assert matrix is not None
    cells = re.findall(r'aria-label="opponent: ([^;"]*);[^"]*"', matrix[0])
    assert len(cells) == len(pairs) > 3
    assert sorted(cells) == sorted(other for _, other in pairs)
    assert all(f">{row['player']}<" in dom for row in standings)


def test_a_script_that_is_not_ours_does_not_run(tmp_path: Path) -> None:
    """Even if text got out of its place: the page allows its own two scripts only."""
    page = run_page(read_run(write_run(tmp_path / "r", [progress_line(1)])))
    evil = "<script>document.documentElement.dataset.evil = 'ran'</script></body>"
    dom, complaints = visit(render(page).replace("</body>", evil), tmp_path)
    assert "data-evil" not in dom
    assert any("Content Security Policy" in line for line in complaints)


def test_tables_are_ordered_by_a_click(tmp_path: Path) -> None:
    page = sweep_page(read_sweep(SweepFolder.open(write_everything(tmp_path / "s"))))
    html = re.sub(r"<meta http-equiv[^>]*>", "", render(page))  # so that the test's own script runs
    dom, _ = visit(html.replace("</body>", f"<script>{_CLICKS}</script></body>"), tmp_path)
    found = re.search(r'data-ordered="([^"]*)"', dom)
    assert found is not None
    texts = re.findall(r"&quot;([^&]*)&quot;", found[1])
    half = len(texts) // 2
    numbers = [float(text) for text in texts]
    assert numbers[:half] == sorted(numbers[:half])
    assert numbers[half:] == sorted(numbers[half:], reverse=True)
    assert len(set(numbers)) > 3
