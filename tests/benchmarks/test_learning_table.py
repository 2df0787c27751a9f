"""The page of results: which runs count, and the cells of a row."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.learning_table import (
    LEARNING,
    OTHERS,
    PAGE,
    ZOO,
    also_published,
    commands_of,
    fixed_row_of,
    measured_on,
    page_of,
    read_runs,
    row_of,
    short,
)
from tests.conftest import ROOT


def run(seed: int, num_env_steps: int, value: float, experiment: str = "ppo_cartpole") -> dict[str, object]:
    names = ("experiment", "seed", "num_env_steps", "seconds", "episode_return_mean", "target", "max_env_steps")
    return dict(zip(names, (experiment, seed, num_env_steps, 10.0 + seed, value, 450, 300_000), strict=True))


def mean_and_ends(values: Sequence[float]) -> tuple[float, float, float]:
    return sum(values) / len(values), min(values), max(values)


def test_the_newest_run_of_a_seed_counts(tmp_path: Path) -> None:
    runs = [run(1, 5, 1.0), run(0, 6, 2.0), run(1, 7, 3.0), run(0, 8, 4.0, "a2c_cartpole")]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in runs))
    found = read_runs(tmp_path / "results.jsonl")
    assert list(found) == ["a2c_cartpole", "ppo_cartpole"]
    assert [one["num_env_steps"] for one in found["ppo_cartpole"]] == [6, 7]


def test_a_run_that_misses_counts_with_its_env_steps() -> None:
    runs = [run(0, 100_000, 460.0), run(1, 90_000, 451.0), run(2, 300_000, 20.0)]
    assert row_of("ppo_cartpole", runs, mean_and_ends) == (
        "| `ppo_cartpole` | 450 within 300k | 2 of 3 | 163k [90k, 300k] | 310 [20, 460] |"
    )


def test_a_return_after_the_env_steps_is_a_miss() -> None:
    assert "| 1 of 2 |" in row_of("ppo_cartpole", [run(0, 300_000, 460.0), run(1, 300_016, 460.0)], mean_and_ends)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-7.075, "-7.08"),
        (62.96, "63"),
        (999.6, "1k"),
        (8_912, "8.91k"),
        (146_651, "147k"),
        (1_500_000, "1.5M"),
    ],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert short(value) == text


def test_every_measured_experiment_is_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    runs = read_runs(LEARNING) | read_runs(ZOO)
    page = page_of(runs, mean_and_ends)
    written = PAGE.read_text(encoding="utf-8")
    assert all(f"\n| `{name}` | " in page and f"\n| `{name}` | " in written for name in runs)
    headings = [line for line in page.splitlines() if line.startswith("#")]
    assert headings == [line for line in written.splitlines() if line.startswith("#")]
    assert {experiment for experiment, *_ in OTHERS} <= {path.stem for path in (ROOT / "conf/experiment").iterdir()}


def test_every_picture_of_the_page_exists() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    pictures = re.findall(r'!\[.*?\]\((.+?)\)|<img src="(.+?)"', page)
    assert len(pictures) > 5
    missing = [name for names in pictures for name in names if name and not (ROOT / PAGE.parent / name).is_file()]
    assert missing == []


def test_commands_are_shown_of_experiments_of_fixed_env_steps_or_with_a_gif(tmp_path: Path) -> None:
    fixed, sampled = [run(0, 9, 1.0) | {"target": None}], [run(0, 9, 1.0)]
    runs = {"ppo_hopper_of_a_test": fixed, "ppo_cartpole": sampled, "ppo_acrobot": sampled}
    assert commands_of({"ppo_cartpole": sampled}, tmp_path) == []
    assert commands_of(runs, tmp_path)[2:] == [
        "| `ppo_hopper_of_a_test` | `runner train ppo_hopper_of_a_test seed=0`<br>"
        '`make zoo ZOO="--experiments ppo_hopper_of_a_test"` |',
        "",
    ]
    (tmp_path / "ppo_acrobot.gif").touch()
    with_gif = commands_of(runs, tmp_path)
    assert [line.split(" | ")[0] for line in with_gif[2:-1]] == ["| `ppo_hopper_of_a_test`", "| `ppo_acrobot`"]
    assert "`runner play zoo:ppo_acrobot`<br><img src=" in with_gif[3]


def test_machines_and_versions_are_shown_of_runs_that_were_stored_with_them() -> None:
    versions = {"python": "3.11.7", "torch": "2.13.0", "mujoco": "4.0.0", "ray": "2.60.0"}
    stored = run(0, 9, 1.0) | {"machine": "2 cores, A", "versions": versions}
    known = "2 cores, A; python 3.11.7, torch 2.13.0, mujoco 4.0.0.\n"
    assert measured_on({"a": [stored, stored], "b": [stored]}, "mujoco") == [f"Machine and versions: {known}"]
    assert measured_on({"a": [stored], "b": [run(0, 9, 1.0)]}, "mujoco") == [f"Machine and versions of `a`: {known}"]
    assert measured_on({"b": [run(0, 9, 1.0)]}, None) == []


def test_a_fixed_number_of_env_steps_is_compared_with_the_published_return(tmp_path: Path) -> None:
    runs = [run(seed, 1_001_472, value, "ppo_hopper") | {"target": None} for seed, value in enumerate((2000.0, 3000.0))]
    runs = [one | {"max_env_steps": 1_000_000, "seconds": 300.0 * (1 + number)} for number, one in enumerate(runs)]
    (tmp_path / "ppo_hopper-0.jsonl").write_text("[2048, 20, 1.0]\n[4096, 1500, 2.0]\n")
    (tmp_path / "ppo_hopper-1.jsonl").write_text("[2048, 20, 1.0]\n[4096, 2400, 90.0]\n[8192, 2500, 99.0]\n")
    assert fixed_row_of("ppo_hopper", runs, mean_and_ends, tmp_path) == (
        "| `ppo_hopper` | 1M | 2,383 | **2500** | 2500 [2000, 3000] | 1 of 2 | 4.1k, 1 of 2 | 0.0 | 5.0 |"
    )


def test_further_published_returns_are_listed() -> None:
    fixed = [run(0, 9, 1.0) | {"target": None, "max_env_steps": 1_000_000}]
    stops_early, longer = [run(0, 9, 1.0)], [run(0, 9, 1.0) | {"target": None, "max_env_steps": 2_000_000}]
    (text,) = also_published({"ppo_hopper": fixed, "ppo_reacher": fixed, "dqn_cartpole": stops_early})
    assert re.fullmatch(r"Also published .*: `ppo_hopper` 2410 ± 10 \(\[RL-Zoo\]\(https://[^,]+\)\)\.\n", text)
    assert also_published({"ppo_reacher": fixed, "ppo_hopper": longer}) == []


def test_pages_of_other_benchmarks_become_sections(tmp_path: Path) -> None:
    (tmp_path / "gpu.md").write_text("# A GPU\n\nText.\n\n## Atari\n")
    page = page_of({}, mean_and_ends, pages=[tmp_path / "suites.md", tmp_path / "gpu.md"])
    assert "\n## A GPU\n\nText.\n\n### Atari\n\n## Published" in page
