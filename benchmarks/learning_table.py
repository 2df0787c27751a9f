"""The table of learning runs in docs/learning.md, from the lines that `make learning` leaves; `make learning-table`.

Rows of experiments of which there are no lines stay as they are.

Intervals are inter-quartile means with 95 % bootstrap intervals of each experiment by itself (rliable: Agarwal et al.,
2021, https://arxiv.org/abs/2108.13264). A run that misses its target counts with the env steps that it was given.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

BEGIN, END = "<!-- make learning-table: begin -->", "<!-- make learning-table: end -->"
_COLUMNS = ("experiment", "target", "reached by", "env steps, IQM", "median", "worst", "return, IQM", "seconds, median")
HEAD = (f"| {' | '.join(_COLUMNS)} |", f"|{' --- |' * len(_COLUMNS)}")
Run = Mapping[str, Any]
# Values of runs -> inter-quartile mean, lower and upper bound.
Interval = Callable[[Sequence[float]], tuple[float, float, float]]


def read_runs(path: Path) -> dict[str, list[Run]]:
    """Return experiment -> its runs, the newest one of each seed, by seed."""
    newest: dict[tuple[str, int], Run] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        newest[run["experiment"], run["seed"]] = run
    by_experiment: dict[str, list[Run]] = {}
    for (experiment, _), run in sorted(newest.items()):
        by_experiment.setdefault(experiment, []).append(run)
    return by_experiment


def row_of(experiment: str, runs: Sequence[Run], interval: Interval) -> str:
    """Return the row of an experiment."""
    target, limit = runs[0]["target"], runs[0]["max_env_steps"]
    reached = [run for run in runs if run["episode_return_mean"] >= target and run["num_env_steps"] <= limit]
    steps = [float(run["num_env_steps"]) for run in runs]
    cells = (
        f"`{experiment}`",
        f"{target:g} within {limit:,}",
        f"{len(reached)} of {len(runs)}",
        "{:,.0f} [{:,.0f}, {:,.0f}]".format(*interval(steps)),
        f"{median(steps):,.0f}",
        f"{max(steps):,.0f}",
        "{:.4g} [{:.4g}, {:.4g}]".format(*interval([run["episode_return_mean"] for run in runs])),
        f"{median(run['seconds'] for run in runs):.0f}",
    )
    return f"| {' | '.join(cells)} |"


def rliable_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the inter-quartile mean of runs and its 95 % interval, from 10,000 resamples."""
    import numpy as np
    from rliable import library, metrics

    scores = {"runs": np.array(values, np.float64)[:, None]}  # (runs, tasks)
    np.random.seed(0)  # the resamples of rliable
    point, bounds = library.get_interval_estimates(scores, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=10_000)
    return float(point["runs"][0]), float(bounds["runs"][0, 0]), float(bounds["runs"][1, 0])


def with_rows(page: str, rows: Sequence[str]) -> str:
    """Return the page with these rows in its table, in the order of their experiments, instead of older ones."""
    before, rest = page.split(BEGIN)
    table, after = rest.split(END)
    kept = {row.split("`")[1]: row for row in [*table.splitlines(), *rows] if row.startswith("| `")}
    return "\n".join((before + BEGIN, *HEAD, *(kept[name] for name in sorted(kept)), END + after))


def main() -> None:
    """Print the table, and put it into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("docs/learning/results.jsonl"))
    parser.add_argument("--page", type=Path, help="page whose table between the marks is replaced")
    arguments = parser.parse_args()
    rows = [row_of(name, runs, rliable_interval) for name, runs in read_runs(arguments.results).items()]
    print("\n".join((*HEAD, *rows)))
    if arguments.page is not None:
        page = arguments.page.read_text(encoding="utf-8")
        arguments.page.write_text(with_rows(page, rows), encoding="utf-8")


if __name__ == "__main__":
    main()
