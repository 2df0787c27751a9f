"""The runs that prove the settings of `env_defaults`, and their table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import env_defaults
from benchmarks.env_defaults import CASES, PAGE, Case, table, write_page
from runner.config.env_defaults import env_defaults_of
from runner.config.paths import conf_dir, list_options

DIRS = [conf_dir()]
OF_OTHER_PACKAGES = ("highway", "FlappyBird")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.env)
def test_a_case_starts_from_env_defaults(case: Case) -> None:
    assert case.env not in list_options(DIRS, "env")
    if not case.env.startswith(OF_OTHER_PACKAGES):
        assert env_defaults_of(case.algorithm, case.env, DIRS) != "none"


def test_the_target_is_a_share_of_the_best_return() -> None:
    assert Case("A-v0", "ppo", 1, 0.5, 2, "").target == pytest.approx(1.8)
    assert Case("A-v0", "ppo", 1, -50, 2, "").target == pytest.approx(1.8)
    assert Case("A-v0", "ppo", 1, -200, -100, "").target == pytest.approx(-110)


def test_the_page_shows_the_stored_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case = CASES[0]
    rows = [{"env": case.env, "algorithm": case.algorithm, "seed": seed, "return": case.best + 1} for seed in (1, 0)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "page.md").write_text(f"before\n{env_defaults.BEGIN}\nold\n{env_defaults.END}\nafter\n")
    monkeypatch.setattr(env_defaults, "RESULTS", tmp_path / "rows.jsonl")
    monkeypatch.setattr(env_defaults, "PAGE", tmp_path / "page.md")
    write_page()
    lines = (tmp_path / "page.md").read_text().splitlines()
    assert [lines[0], lines[-1], len(lines)] == ["before", "after", 7]
    assert lines[4].startswith(f"| `{case.env}` | `{case.algorithm}` |")
    assert "✓" in lines[4]


def test_the_page_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    monkeypatch.chdir(root)
    assert "\n".join(table()) in (root / PAGE).read_text(encoding="utf-8")
