"""Update the table of benchmarks/results/learning.md from the results of `make learning`; run by `make learning-table`.

Rows of experiments without new results are kept.

Intervals are inter-quartile means with 95 % bootstrap intervals per experiment (rliable: Agarwal et al., 2021,
https://arxiv.org/abs/2108.13264). A run that misses its target counts with its full budget of env steps.
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
    """Return experiment -> newest run of each seed, in the order of seeds."""
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
    np.random.seed(0)  # for the resamples of rliable
    point, bounds = library.get_interval_estimates(scores, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=10_000)
    return float(point["runs"][0]), float(bounds["runs"][0, 0]), float(bounds["runs"][1, 0])


def probability_of_improvement(ours: Sequence[float], others: Sequence[float]) -> tuple[float, float, float]:
    """Return the probability that our run is better than another system's run, and its 95 % interval."""
    import numpy as np
    from rliable import library, metrics

    pair = {"pair": (np.array(ours, np.float64)[:, None], np.array(others, np.float64)[:, None])}
    np.random.seed(0)  # for the resamples of rliable
    point, bounds = library.get_interval_estimates(pair, metrics.probability_of_improvement, reps=2_000)
    return float(point["pair"]), float(bounds["pair"][0, 0]), float(bounds["pair"][1, 0])


def comparison(ours: Mapping[str, Sequence[Run]], others: Mapping[str, Sequence[Run]]) -> list[str]:
    """Return one row per common experiment: which of the two needs fewer env steps."""
    rows = ["| experiment | runs | probability of fewer env steps |", "| --- | --- | --- |"]
    for experiment in sorted(set(ours) & set(others)):
        first, second = ours[experiment], others[experiment]
        steps = [[-float(run["num_env_steps"]) for run in runs] for runs in (first, second)]
        share = "{:.2f} [{:.2f}, {:.2f}]".format(*probability_of_improvement(*steps))
        rows.append(f"| `{experiment}` | {len(first)} and {len(second)} | {share} |")
    return rows


def with_rows(page: str, rows: Sequence[str], head: Sequence[str] = HEAD) -> str:
    """Return the page with these rows in its table, in the order of their experiments, replacing older rows."""
    before, rest = page.split(BEGIN)
    table, after = rest.split(END)
    kept = {row.split("`")[1]: row for row in [*table.splitlines(), *rows] if row.startswith("| `")}
    return "\n".join((before + BEGIN, *head, *(kept[name] for name in sorted(kept)), END + after))


def main() -> None:
    """Print the table and update the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/learning/results.jsonl"))
    parser.add_argument("--page", type=Path, help="page whose table between the marks is replaced")
    parser.add_argument("--compare", type=Path, nargs=2, help="two files with results to compare instead")
    arguments = parser.parse_args()
    if arguments.compare is not None:
        print("\n".join(comparison(*map(read_runs, arguments.compare))))
        return
    rows = [row_of(name, runs, rliable_interval) for name, runs in read_runs(arguments.results).items()]
    print("\n".join((*HEAD, *rows)))
    if arguments.page is not None:
        page = arguments.page.read_text(encoding="utf-8")
        arguments.page.write_text(with_rows(page, rows), encoding="utf-8")


if __name__ == "__main__":
    main()
