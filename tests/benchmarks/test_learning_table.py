"""The table of learning runs: which runs count, and what a row says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.learning_table import BEGIN, END, HEAD, read_runs, row_of, with_rows


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
        "| `ppo_cartpole` | 450 within 300,000 | 2 of 3 | 163,333 [90,000, 300,000] | 100,000 | 300,000 "
        "| 310.3 [20, 460] | 11 |"
    )


def test_a_return_after_the_env_steps_is_a_miss() -> None:
    assert "| 1 of 2 |" in row_of("ppo_cartpole", [run(0, 300_000, 460.0), run(1, 300_016, 460.0)], mean_and_ends)


def test_rows_without_new_runs_stay() -> None:
    head = "\n".join(HEAD)
    page = f"before\n{BEGIN}\n{head}\n| `a` | 1 |\n| `c` | 1 |\n{END}\nafter\n"
    changed = with_rows(page, ["| `c` | 2 |", "| `b` | 2 |"])
    assert changed == f"before\n{BEGIN}\n{head}\n| `a` | 1 |\n| `b` | 2 |\n| `c` | 2 |\n{END}\nafter\n"
    assert with_rows(changed, []) == changed
