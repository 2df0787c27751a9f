"""The page of all runs below a folder: runs that are found, table, curves, configurations, its size, a browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.report.runs_page import runs_page
from runner.report.runs_record import BROKEN, RunEntry, RunsRecord, read_runs
from tests.conftest import Run
from tests.report.browser import BROWSER, NAMES, browser_page
from tests.report.folders import EVIL, METRIC, progress_line, write_run

STEPS = "num_env_steps_sampled_lifetime"
FINISHED = {"status": "finished", "stop_reason": "mean return 100 >= 100"}


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Two finished runs, a trial of a sweep, a killed run, one that has not begun, and one that cannot be read."""
    folder = tmp_path / "outputs"
    for number, name in enumerate(("one/2026-01-01/10-00-00", "one/2026-01-02/10-00-00")):
        lines = [progress_line(iteration) for iteration in range(1, 9 + number)]
        run_dir = write_run(folder / name, lines, FINISHED, "['+experiment=one']")
        (run_dir / ".hydra" / "config.yaml").write_text(f"seed: {number}\nalgorithm: {{lr: 0.1, layers: [64, 64]}}\n")
    (folder / "one" / "latest").symlink_to(folder / "one/2026-01-02/10-00-00")
    trial = write_run(folder / "two/sweeps/name/0", [progress_line(1)])
    (trial / ".hydra" / "config.yaml").write_text("seed: 0\nalgorithm: {lr: 0.2, layers: [64, 64]}\n")
    write_run(folder / "two/2026-01-03/10-00-00", [])
    (folder / "two/2026-01-04/10-00-00/progress.jsonl").mkdir(parents=True)
    (folder / "two/2026-01-04/10-00-00/checkpoints/nested").mkdir(parents=True)
    return folder


def data_of(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, flags=re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_runs_are_found_and_listed_with_their_states(outputs: Path) -> None:
    record = read_runs(outputs)
    assert [(run.path, run.status) for run in record.runs if run.started.startswith("2026-01-0")] == [
        ("two/2026-01-04/10-00-00", BROKEN),
        ("two/2026-01-03/10-00-00", "unfinished"),
        ("one/2026-01-02/10-00-00", "finished"),
        ("one/2026-01-01/10-00-00", "finished"),
    ]
    assert record.runs[0].path == "two/sweeps/name/0"  # started when its files were written
    assert len(record.runs) == 5
    assert record.runs[1].reason == "progress.jsonl cannot be read: Is a directory"
    page = runs_page(record)
    assert page.headline == ["runs     5: 2 unfinished, 2 finished, 1 unreadable"]


def test_curves_have_the_numbers_of_the_runs(outputs: Path) -> None:
    data = data_of(runs_page(read_runs(outputs)).html)
    assert data["metrics"][0] == {"key": METRIC, "title": "Mean return"}
    keys = [metric["key"] for metric in data["metrics"]]
    newest = next(run for run in data["runs"] if run["name"] == "#4 one, seed 1")
    assert newest["x"] == [[1000.0 * n for n in range(1, 10)], *[[float(n) for n in range(1, 10)]] * 2]
    assert newest["y"][str(keys.index(METRIC))] == [20.0 * n for n in range(1, 10)]
    assert newest["y"][str(keys.index("learners/default_policy/curr_kl_coeff"))] == 0.2
    assert data["selected"] == [0, 3, 4]


def test_configurations_are_compared_by_their_differing_keys(outputs: Path) -> None:
    data = data_of(runs_page(read_runs(outputs)).html)
    assert {"seed", "algorithm.lr"} <= set(data["keys"])
    lr = str(data["keys"].index("algorithm.lr"))
    assert [run["config"].get(lr) for run in data["runs"]] == ["0.2", None, None, "0.1", "0.1"]


def many_runs(num_runs: int) -> RunsRecord:
    chance = np.random.default_rng(0)
    names = [METRIC, STEPS, "time_total_s", "training_iteration", *(f"learners/m/loss_{n}" for n in range(45))]
    columns = {name: np.sort(chance.normal(size=300)) for name in names}
    runs = [RunEntry(f"r/{n}", "r", "finished", "", "", columns, {"seed": str(n)}) for n in range(num_runs)]
    return RunsRecord(Path("outputs"), runs)


@pytest.mark.parametrize("num_runs", [200, 1000])
def test_a_page_of_many_runs_stays_small(num_runs: int) -> None:
    html = runs_page(many_runs(num_runs)).html
    assert len(html) < 11_000_000
    curve = data_of(html)["runs"][-1]["y"]["0"]
    assert 20 <= len(curve) <= 150


def test_many_curves_without_a_main_metric_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.report.runs_page._MOST_NUMBERS", 100)
    columns = {f"mine/{number}": np.arange(3.0) for number in range(10)}
    record = RunsRecord(Path("outputs"), [RunEntry("r/0", "r", "finished", "", "", columns, {})])
    assert data_of(runs_page(record).html)["metrics"] == []


def test_texts_of_runs_are_escaped(tmp_path: Path) -> None:
    run_dir = write_run(
        tmp_path / EVIL.replace("/", "_"), [progress_line(1, **{EVIL: 1.0})], {"status": EVIL, "stop_reason": EVIL}
    )
    (run_dir / ".hydra" / "config.yaml").write_text(json.dumps({EVIL: EVIL}))
    write_run(tmp_path / "other", [progress_line(1)])
    html = runs_page(read_runs(tmp_path)).html
    ours = re.sub(r"<script[^>]*>.*?</script>", "", html, flags=re.DOTALL)
    assert EVIL not in ours
    assert "<img src=x" not in ours
    assert EVIL not in re.findall(r'id="data">(.*?)</script>', html, flags=re.DOTALL)[0]


def test_command(outputs: Path, run_main: Run) -> None:
    outcome = run_main("report", str(outputs), "-o", "all.html")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == "report   all.html\nruns     5: 2 unfinished, 2 finished, 1 unreadable\n"
    refused = run_main("report", str(outputs), "--watch")
    assert refused.code == 2
    assert "--watch follows a run or a sweep" in refused.err


# -- a browser --------------------------------------------------------------------------------------------------------

_TYPE = """(() => {
  const input = document.querySelector(%s);
  input.value = %s;
  input.dispatchEvent(new Event("input", { bubbles: true }));
})()"""
_SHOWN = "rows.filter((row) => !row.hidden).map((row) => row.cells[3].textContent)"
_NAMES = "charts.specs.overlay.datasets.points.map((point) => point.series)"


def typed(selector: str, text: str) -> str:
    return _TYPE % (json.dumps(selector), json.dumps(text))


@pytest.mark.skipif(BROWSER is None, reason=f"no browser on PATH: {', '.join(NAMES)}")
def test_in_a_browser(outputs: Path, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(runs_page(read_runs(outputs)).html)
    with browser_page(tmp_path / "browser") as page:
        page.open(file.as_uri())
        page.wait_for("document.documentElement.dataset.charts === 'drawn'")
        assert set(page.evaluate(_NAMES)) == {"#1 0, seed 0", "#4 one, seed 1", "#5 one, seed 0"}
        assert page.evaluate("document.querySelectorAll('#overlay svg.marks').length") == 1

        page.evaluate(typed("#filter", "ONE 2026"))
        assert page.evaluate(_SHOWN) == ["one/2026-01-02/10-00-00", "one/2026-01-01/10-00-00"]
        page.evaluate(typed("[aria-label='filter last return']", "> 170"))
        assert page.evaluate(_SHOWN) == ["one/2026-01-02/10-00-00"]
        page.evaluate(typed("[aria-label='filter last return']", "150..165"))
        assert page.evaluate(_SHOWN) == ["one/2026-01-01/10-00-00"]
        page.evaluate(typed("[aria-label='filter last return']", ""))

        page.evaluate("document.getElementById('clear').click()")
        page.wait_for("!charts.specs.overlay")
        assert page.evaluate("document.querySelectorAll('#overlay svg.marks').length") == 0
        page.evaluate("document.getElementById('tick').click()")
        page.wait_for("document.querySelector('#overlay svg.marks')?.isConnected")
        assert set(page.evaluate(_NAMES)) == {"#4 one, seed 1", "#5 one, seed 0"}
        cells = "[...document.querySelectorAll('#configurations tbody tr')].map((row) => row.textContent)"
        assert page.evaluate(cells) == ["seed10"]
        assert page.evaluate("document.querySelectorAll('#configurations td.differs').length") == 1

        page.evaluate(typed("#smoothing input", "0.5"))
        expected = np.array([20.0, (0.25 * 20 + 0.5 * 40) / 0.75])  # weights of an average without bias
        shown = "shownRows(charts.specs.overlay, charts.specs.overlay.datasets.points).slice(0, 2)"
        assert page.evaluate(f"{shown}.map((row) => row.y)") == pytest.approx(expected)
        assert page.evaluate(f"{shown}.map((row) => row.raw)") == [20, 40]
        gap = [{"x": 1, "y": 8, "series": "a"}, {"x": 2, "y": None, "series": "a"}, {"x": 3, "y": 2, "series": "a"}]
        other = [{"x": 1, "y": 5, "series": "b"}, {"x": 1, "y": 5, "series": "b"}]
        smoothed = page.evaluate(f"smooth({json.dumps(gap + other)}, 0.5).map((row) => row.y)")
        assert smoothed == [8, None, 4, 5, 5]

        page.evaluate("document.getElementById('log').click()")
        page.wait_for("JSON.stringify(charts.specs.overlay).includes('log')")
        page.wait_for("document.querySelector('#overlay svg.marks') !== null")
        assert "NaN" not in page.evaluate("document.querySelector('#overlay svg.marks').outerHTML")
        assert page.complaints == []
