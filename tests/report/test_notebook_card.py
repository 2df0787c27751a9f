"""What a notebook shows of a run."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from runner import read_run
from runner.config.errors import UserError
from tests.report.folders import EVIL, METRIC, progress_line, write_run

FINISHED = {"status": "finished", "stop_reason": "reached 9 iterations", "checkpoint": "c", "best_checkpoint": "b"}
LINES = [progress_line(number) for number in range(1, 10)]


def pictures_of(html: str) -> list[str]:
    """The drawings in a piece of HTML."""
    return [base64.b64decode(text).decode() for text in re.findall(r"data:image/svg\+xml;base64,([^\"]+)", html)]


def test_a_record_knows_what_a_run_left(tmp_path: Path) -> None:
    record = read_run(str(write_run(tmp_path / "run", LINES, FINISHED)))
    assert record.metrics[METRIC] == 180.0
    assert (record.status, record.checkpoint, record.best_checkpoint, record.config) == (
        *("finished", "c", "b"),
        "seed: 0\n",
    )


def test_a_record_is_printed_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert repr(read_run(write_run(path, LINES, FINISHED))) == f"RunRecord('{path}': finished, iteration 9, return 180)"
    path = tmp_path / "new"
    assert str(read_run(write_run(path, []))) == f"RunRecord('{path}': unfinished, iteration 0)"


def test_a_card_shows_facts_and_curves(tmp_path: Path) -> None:
    html = read_run(write_run(tmp_path / "run", LINES, FINISHED, "['+experiment=mine']"))._repr_html_()
    assert "mine" in html
    assert "finished" in html
    assert "last; best 180" in html
    assert "Learner" in html
    curves, *small = pictures_of(html)
    assert "Mean return" in curves
    assert "env steps" in curves
    assert len(small) == 1  # total_loss; the coefficient is the same in every iteration
    assert "<script" not in html
    assert "<style" not in html


def test_a_card_of_a_run_that_has_just_begun(tmp_path: Path) -> None:
    html = read_run(write_run(tmp_path / "run", []))._repr_html_()
    assert "No iteration has ended" in html
    assert pictures_of(html) == []


def test_a_failure_is_told_first(tmp_path: Path) -> None:
    failed = {"status": "failed", "stop_reason": "the environment raised\n  KeyError: 'x'"}
    html = read_run(write_run(tmp_path / "run", LINES, failed))._repr_html_()
    assert html.index("KeyError: &#39;x&#39;") < html.index("<img")


def test_names_are_escaped(tmp_path: Path) -> None:
    lines = [progress_line(number, **{EVIL: float(number), "evaluation/" + EVIL: float(number)}) for number in (1, 2)]
    record = read_run(write_run(tmp_path / EVIL.replace("/", "_"), lines, {"status": EVIL, "stop_reason": EVIL}))
    for html in (record._repr_html_(), record.curves(EVIL)._repr_html_()):
        assert "<script" not in html
        assert "<img src=x" not in html


def test_curves_of_chosen_metrics(tmp_path: Path) -> None:
    record = read_run(write_run(tmp_path / "run", LINES, FINISHED))
    alone = record.curves(METRIC)
    assert alone.points["points"][0]["low"] == 15.0
    both = record.curves(METRIC, "learners/default_policy/total_loss")
    assert {row["series"] for row in both.points["points"]} == {METRIC, "learners/default_policy/total_loss"}
    (picture,) = pictures_of(both._repr_html_())
    assert "total_loss" in picture


def test_curves_of_one_kind_have_short_names(tmp_path: Path) -> None:
    record = read_run(write_run(tmp_path / "run", LINES, FINISHED))
    figure = record.curves("learners/default_policy/total_loss", "learners/default_policy/curr_kl_coeff")
    assert {row["series"] for row in figure.points["points"]} == {"total_loss", "curr_kl_coeff"}
    (picture,) = pictures_of(figure._repr_html_())
    assert "learners/default_policy" in picture


@pytest.mark.parametrize("metrics", [["env_runners/episode_return_meen"], []])
def test_a_metric_that_is_not_there_is_an_error(tmp_path: Path, metrics: list[str]) -> None:
    record = read_run(write_run(tmp_path / "run", LINES))
    with pytest.raises(UserError, match="this run does not have this metric") as caught:
        record.curves(*metrics)
    assert METRIC in str(caught.value)
