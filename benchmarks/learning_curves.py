"""Draw learning curves for the docs from the curves that `make learning` leaves; `make learning-curves`.

Each picture shows the return of every seed, their median and the target of the experiment. The median ends when half
of the seeds have stopped.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import altair as alt
import numpy as np
import vl_convert

from runner.config.compose import compose_experiment
from runner.config.validation import build_experiment_config

_COLOUR, _TARGET_COLOUR = "#2962ff", "#d32f2f"
_NUM_POINTS = 100
_STEPS = "num_env_steps_sampled_lifetime"
# Targets of experiments on recorded data, whose `stop` does not contain a return, from
# tests/learning/test_offline_learning.py.
RECORDED = {"bc_cartpole": 450, "marwil_cartpole": 400, "iql_pendulum": -250, "cql_pendulum": -400}
RECORDED |= {"cql_discrete_cartpole": 400}
STEP_LABELS = "datum.value ? format(datum.value, '~s') : '0'"  # 0.0, 200k, 1M without the first decimal
Curve = list[list[float]]  # [env steps, return], in ascending order


def read_curves(folder: Path) -> dict[str, list[Curve]]:
    """Return experiment -> the curves of its seeds."""
    by_experiment: dict[str, list[Curve]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        experiment = path.stem.rpartition("-")[0]
        curve = [json.loads(line)[:2] for line in path.read_text(encoding="utf-8").splitlines()]
        if curve:
            by_experiment.setdefault(experiment, []).append(curve)
    return by_experiment


def quartiles_of(curves: Sequence[Curve]) -> Curve:
    """Return `[env steps, lower quartile, median, upper quartile]` of the curves on a common grid of env steps.

    A run that has stopped keeps its last return.
    """
    ends = sorted((curve[-1][0] for curve in curves), reverse=True)
    last = ends[(len(ends) - 1) // 2]  # half of the seeds train at least this long
    first = max(curve[0][0] for curve in curves)
    points = []
    for steps in np.linspace(first, max(first, last), _NUM_POINTS).tolist():
        values = [float(np.interp(steps, *zip(*curve, strict=True))) for curve in curves]
        points.append([steps, *np.percentile(values, (25, 50, 75)).tolist()])
    return points


def target_of(experiment: str) -> float | None:
    """Return the return at which training stops."""
    if experiment in RECORDED:
        return RECORDED[experiment]
    stop = build_experiment_config(compose_experiment([f"experiment={experiment}"])).stop
    return next((value for name, value in stop.items() if name.endswith("return_mean")), None)


def chart_of(experiment: str, curves: Sequence[Curve], target: float | None) -> alt.LayerChart:
    """Draw the curves of one experiment."""
    unit = "rows learned from" if experiment in RECORDED else "env steps"
    rows = [
        {"seed": seed, "x": round(steps), "y": float(f"{value:.4g}")}
        for seed, curve in enumerate(curves)
        for steps, value in _thinned(curve)
    ]
    middle = [{"x": round(steps), "y": float(f"{value:.4g}")} for steps, _, value, _ in quartiles_of(curves)]
    x = alt.X("x:Q").axis(labelExpr=STEP_LABELS, tickCount=5, title=unit)
    y = alt.Y("y:Q").scale(zero=False).axis(title="return", tickCount=5)
    seeds = alt.Chart(alt.Data(values=rows)).mark_line(color=_COLOUR, opacity=0.25, strokeWidth=1)
    bold = alt.Chart(alt.Data(values=middle)).mark_line(color=_COLOUR, strokeWidth=2)
    layers = [seeds.encode(x=x, y=y, detail="seed:N"), bold.encode(x=x, y=y)]
    if target is not None:
        line = alt.Chart(alt.Data(values=[{"y": target}]))
        layers.append(line.mark_rule(color=_TARGET_COLOUR, strokeDash=[4, 3]).encode(y="y:Q"))
    title = alt.TitleParams(experiment, subtitle=f"{len(curves)} seeds, median, target (dashed)", anchor="start")
    chart = alt.layer(*layers).properties(width=270, height=150, title=title, background="white", padding=6)
    return (
        chart.configure(font="Helvetica, Arial, sans-serif")
        .configure_view(stroke=None)
        .configure_title(fontSize=12, fontWeight=600, subtitleFontSize=10, subtitleColor="#666")
        .configure_axis(labelFontSize=10, titleFontSize=10, titleFontWeight="normal", gridColor="#eee")
    )


def _thinned(curve: Curve) -> Curve:
    """Return at most 100 points of a curve, the last one among them."""
    step = -(-len(curve) // _NUM_POINTS)
    return curve[::-1][::step][::-1]


def main() -> None:
    """Draw a picture for each experiment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, default=Path("benchmarks/results/learning/curves"))
    parser.add_argument("--pictures", type=Path, default=Path("docs/pictures/learning"))
    arguments = parser.parse_args()
    arguments.pictures.mkdir(parents=True, exist_ok=True)
    for experiment, curves in read_curves(arguments.curves).items():
        picture = vl_convert.vegalite_to_svg(chart_of(experiment, curves, target_of(experiment)).to_dict())
        (arguments.pictures / f"{experiment}.svg").write_text(picture, encoding="utf-8")
        print(f"{arguments.pictures / experiment}.svg  {len(curves)} seeds")


if __name__ == "__main__":
    main()
