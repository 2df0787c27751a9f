"""Importance of searched keys on the page of a sweep."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from runner.pages.page import Block, Figure, Text
from runner.report.sweep_importance import importance
from runner.report.sweep_page import sweep_page
from runner.report.sweep_record import read_sweep
from runner.sweep.trials import SweepFolder
from tests.report.folders import METRIC, write_sweep

Reached = Callable[[Mapping[str, Any]], float]
LR = {"interval": [1e-5, 1e-2], "log": True}
EPOCHS = {"interval": [1, 9], "int": True}
LISTS = {"algorithm.gamma": ["0.9", "0.99"], "module.fcnet_hiddens": ["[64,64]", "[256]"]}


def blocks_of(folder: Path, space: Mapping[str, Any], num_trials: int, reached: Reached, **more: Any) -> list[Block]:
    """The section about importance of a sweep whose trials draw their values and reach a function of them."""
    chance, trials = random.Random(0), []
    for _ in range(num_trials):
        combination = {key: drawn(domain, chance) for key, domain in space.items()}
        trials.append({"combination": combination, "result": {METRIC: reached(combination)}})
    return list(importance(read_sweep(SweepFolder.open(write_sweep(folder, space, trials, **more)))))


def drawn(domain: Any, chance: random.Random) -> Any:
    if isinstance(domain, list):
        return chance.choice(domain)
    low, high = domain["interval"]
    if domain.get("log"):
        return math.exp(chance.uniform(math.log(low), math.log(high)))
    return chance.randint(low, high)


def shares(figure: Block) -> dict[str, float]:
    assert isinstance(figure, Figure)
    return {row["name"]: row["x"] for row in figure.points["points"]}


def peak(values: Mapping[str, Any]) -> float:
    """A return that depends on the learning rate most, on epochs a little, on nothing else."""
    return 500 - 100 * (math.log10(values["algorithm.lr"]) + 3) ** 2 + 3 * values["algorithm.num_epochs"]


def test_the_key_that_explains_most_comes_first(tmp_path: Path) -> None:
    space = {"algorithm.num_epochs": EPOCHS, "algorithm.lr": LR, "seed": ["0", "1", "2"], **LISTS}
    bars, surface = blocks_of(tmp_path, space, 40, peak)
    found = shares(bars)
    assert next(iter(found)) == "lr"
    assert found["lr"] > 80
    assert found["seed"] < 10
    assert sum(found.values()) == pytest.approx(100, abs=1)
    assert isinstance(bars, Figure)
    assert "40 trials are few for 5 keys" in bars.caption
    assert isinstance(surface, Figure)
    assert "algorithm.lr" in surface.metric
    cells = surface.points["cells"]
    assert len(cells) > 200
    assert all(cell["x2"] > cell["x"] and cell["y2"] > cell["y"] for cell in cells)


def test_interpolated_colours_follow_the_objective(tmp_path: Path) -> None:
    _, surface = blocks_of(tmp_path, {"algorithm.num_epochs": EPOCHS, "algorithm.lr": LR}, 60, peak)
    assert isinstance(surface, Figure)
    for cell in surface.points["cells"]:
        centre = {
            "algorithm.lr": math.sqrt(cell["x"] * cell["x2"]),
            "algorithm.num_epochs": (cell["y"] + cell["y2"]) / 2,
        }
        assert cell["value"] == pytest.approx(peak(centre), abs=60)


def test_lists_of_values_give_one_cell_for_each_pair(tmp_path: Path) -> None:
    def reached(values: Mapping[str, Any]) -> float:
        return 100 * float(values["algorithm.gamma"]) + (5 if values["module.fcnet_hiddens"] == "[256]" else 0)

    bars, cells = blocks_of(tmp_path, LISTS, 20, reached)
    assert list(shares(bars)) == ["fcnet_hiddens", "gamma"] or list(shares(bars)) == ["gamma", "fcnet_hiddens"]
    assert isinstance(cells, Figure)
    found = {(row["x"], row["y"]): row["value"] for row in cells.points["points"]}
    pairs = {(x, y) if x.startswith("0") else (y, x): value for (x, y), value in found.items()}
    assert pairs == {("0.9", "[64,64]"): 90, ("0.9", "[256]"): 95, ("0.99", "[64,64]"): 99, ("0.99", "[256]"): 104}
    assert sum(row["num"] for row in cells.points["points"]) == 20


@pytest.mark.parametrize(
    ("num_trials", "space", "reached", "reason"),
    [
        (9, {"algorithm.lr": LR, **LISTS}, lambda values: values["algorithm.lr"], "at least 10 ended trials"),
        (20, {"algorithm.lr": LR, **LISTS}, lambda values: 1.0, "the same mean return"),
    ],
)
def test_a_reason_replaces_importances(
    num_trials: int, space: Mapping[str, Any], reached: Reached, reason: str, tmp_path: Path
) -> None:
    (text,) = blocks_of(tmp_path, space, num_trials, reached)
    assert isinstance(text, Text)
    assert reason in text.text


def test_trials_that_reach_the_same_except_for_a_few(tmp_path: Path) -> None:
    """Of 500 trials every second one is used, best first, so that the only bad one is left out."""
    combinations = [{"algorithm.lr": 1e-5 * (n + 1), "algorithm.num_epochs": 1 + n % 9} for n in range(500)]
    trials = [{"combination": one, "num_lines": 0, "result": {METRIC: 500.0}} for one in combinations]
    trials[0]["result"] = {METRIC: 1.0}
    space = {"algorithm.lr": LR, "algorithm.num_epochs": EPOCHS}
    (text,) = importance(read_sweep(SweepFolder.open(write_sweep(tmp_path, space, trials))))
    assert isinstance(text, Text)
    assert "Nearly all trials have the same mean return" in text.text


def test_a_single_key_has_no_section(tmp_path: Path) -> None:
    assert blocks_of(tmp_path, {"algorithm.lr": LR}, 20, lambda values: values["algorithm.lr"]) == []


def test_trials_on_a_line_are_points_without_colours_between(tmp_path: Path) -> None:
    trials = [
        {"combination": {"algorithm.lr": n / 100, "algorithm.gamma": n / 100}, "result": {METRIC: n}}
        for n in range(1, 15)
    ]
    space = {key: {"interval": [0.01, 0.14]} for key in trials[0]["combination"]}
    _, surface = importance(read_sweep(SweepFolder.open(write_sweep(tmp_path, space, trials))))
    assert isinstance(surface, Figure)
    assert surface.points["cells"] == []
    assert len(surface.points["points"]) == 14


def test_a_page_has_the_section(tmp_path: Path) -> None:
    blocks_of(tmp_path, LISTS, 12, lambda values: float(values["algorithm.gamma"]))
    page = sweep_page(read_sweep(SweepFolder.open(tmp_path)))
    assert "Importance" in [section.title for section in page.sections]
    json.dumps([figure.spec() for figure in page.figures], allow_nan=False)
