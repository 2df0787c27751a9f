"""Draw pictures of learning runs for the docs from the curves of `make learning`; run by `make learning-curves`.

Each picture shows the return of every seed over env steps, and their median up to the point where half of the seeds
have stopped.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import altair as alt
import numpy as np
import vl_convert

_COLOUR = "#1f77b4"
_NUM_POINTS = 100
Curve = list[list[float]]  # [env steps, return], in ascending order


def read_curves(folder: Path) -> dict[str, list[Curve]]:
    """Return experiment -> the curves of its seeds."""
    by_experiment: dict[str, list[Curve]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        experiment = path.stem.rpartition("-")[0]
        curve = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        by_experiment.setdefault(experiment, []).append(curve)
    return by_experiment


def median_of(curves: Sequence[Curve]) -> Curve:
    """Return the median of the curves on a common grid of env steps; a run that has stopped keeps its last return."""
    ends = sorted((curve[-1][0] for curve in curves if curve), reverse=True)
    last = ends[(len(ends) - 1) // 2]  # half of the seeds train at least this long
    first = max(curve[0][0] for curve in curves if curve)
    points = []
    for steps in np.linspace(first, max(first, last), _NUM_POINTS).tolist():
        values = [float(np.interp(steps, *zip(*curve, strict=True))) for curve in curves]
        points.append([steps, median(values)])
    return points


def chart_of(experiment: str, curves: Sequence[Curve]) -> alt.LayerChart:
    """Draw the curves of one experiment."""
    rows = [
        {"seed": seed, "env steps": steps, "return": value}
        for seed, curve in enumerate(curves)
        for steps, value in curve
    ]
    middle = [{"env steps": steps, "return": value} for steps, value in median_of(curves)]
    x, y = alt.X("env steps:Q").axis(format="~s", tickCount=5), alt.Y("return:Q").scale(zero=False)
    seeds = alt.Chart(alt.Data(values=rows)).mark_line(color=_COLOUR, opacity=0.3, strokeWidth=1)
    bold = alt.Chart(alt.Data(values=middle)).mark_line(color=_COLOUR, strokeWidth=2.5)
    title = f"{experiment}: {len(curves)} seeds and their median"
    layers = alt.layer(seeds.encode(x=x, y=y, detail="seed:N"), bold.encode(x=x, y=y))
    return layers.properties(width=420, height=180, title=title)


def main() -> None:
    """Draw one picture per experiment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, default=Path("benchmarks/results/learning/curves"))
    parser.add_argument("--pictures", type=Path, default=Path("docs/pictures/learning"))
    arguments = parser.parse_args()
    arguments.pictures.mkdir(parents=True, exist_ok=True)
    for experiment, curves in read_curves(arguments.curves).items():
        picture = vl_convert.vegalite_to_png(chart_of(experiment, curves).to_dict(), scale=1.5)
        (arguments.pictures / f"{experiment}.png").write_bytes(picture)
        print(f"{arguments.pictures / experiment}.png  {len(curves)} seeds")


if __name__ == "__main__":
    main()
