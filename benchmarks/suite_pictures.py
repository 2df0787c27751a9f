"""Draw the learning curves of each suite into docs/pictures/results; `make zoo` and `make learning-table` call it.

A picture has a panel per experiment with stored curves: the median and the quartiles of its seeds, and a dashed line
for the published return or the target. Run `learning_table.py` afterwards: docs/results.md names the pictures.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert
from learning_curves import RECORDED, STEP_LABELS, Curve, quartiles_of, read_curves
from learning_table import (
    LEARNING,
    ORDER,
    PICTURES,
    TRAINING_CURVES,
    ZOO,
    Run,
    picture_of,
    published,
    read_runs,
    suite_of,
)

_COLOUR, _REFERENCE_COLOUR = "#2962ff", "#c62828"
_NUM_COLUMNS = 2  # two panels are as wide as a phone
_WIDTH, _HEIGHT = 155, 95  # of a panel without its axes, in pixels
_RECORDED_SUITE = "Recorded data"


def reference_of(experiment: str, runs: Sequence[Run]) -> tuple[float, str] | None:
    """Return the return and the label of the dashed line: the published return, otherwise the target, or None."""
    target = RECORDED.get(experiment) if not runs else runs[0]["target"]
    if target is not None:
        return target, f"target {target:g}"
    found = published(experiment, runs[0]["max_env_steps"]) if runs else None
    return None if found is None else (found[0], f"{found[1]} {found[0]:,.5g}")


def panel_of(experiment: str, curves: Sequence[Curve], reference: tuple[float, str] | None) -> alt.LayerChart:
    """Draw the curves of an experiment."""
    rows = [
        {
            "x": round(steps),
            **{name: float(f"{value:.4g}") for name, value in zip(("low", "y", "high"), values, strict=True)},
        }
        for steps, *values in quartiles_of(curves)
    ]
    x = alt.X("x:Q").axis(labelExpr=STEP_LABELS, tickCount=3, title=None, grid=False).scale(domainMin=0, nice=False)
    y = alt.Y("y:Q").scale(zero=False).axis(tickCount=4, title=None)
    base = alt.Chart(alt.Data(values=rows)).encode(x=x)
    layers = [
        base.mark_area(color=_COLOUR, opacity=0.2).encode(y=alt.Y("low:Q").title(None), y2="high:Q"),
        base.mark_line(color=_COLOUR, strokeWidth=1.8).encode(y=y),
    ]
    subtitle = f"{len(curves)} seed{'' if len(curves) == 1 else 's'}"
    if reference is not None:
        line = alt.Chart(alt.Data(values=[{"y": reference[0]}]))
        layers.append(line.mark_rule(color=_REFERENCE_COLOUR, strokeDash=[4, 3], strokeWidth=1.3).encode(y="y:Q"))
        subtitle = f"{subtitle}, dashed: {reference[1]}"
    title = alt.TitleParams(experiment, subtitle=subtitle, frame="group", offset=6)
    return alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT, title=title)


def picture_of_suite(panels: Sequence[alt.LayerChart], unit: str) -> str:
    """Return the SVG of a suite. It is white, because a picture does not know the theme of its page."""
    text = f"Return over {unit}: median and quartiles of the seeds"
    title = alt.TitleParams(text, fontSize=11, fontWeight="normal", offset=10)
    grid = alt.concat(*panels, columns=_NUM_COLUMNS, bounds="flush", spacing={"row": 68, "column": 50})
    chart = (
        grid.properties(title=title, background="white", padding=8)
        .configure(font="Helvetica, Arial, sans-serif")
        .configure_view(stroke=None)
        .configure_title(fontSize=12, fontWeight=600, subtitleFontSize=10.5, subtitleColor="#555", anchor="start")
        .configure_axis(labelFontSize=10.5, labelColor="#444", gridColor="#eee", domainColor="#bbb", tickColor="#bbb")
    )
    svg: str = vl_convert.vegalite_to_svg(chart.to_dict())
    return re.sub(r'(?<= d=")[^"]+', lambda path: _in_tenths(path[0]), svg)


def _in_tenths(path: str) -> str:
    """Return a path of an SVG with coordinates in tenths of a pixel."""
    return re.sub(r"\d+\.\d\d+", lambda number: f"{float(number[0]):.1f}", path)


def draw(curves: Mapping[str, Sequence[Curve]], runs: Mapping[str, Sequence[Run]], folder: Path) -> list[Path]:
    """Draw a picture for each suite that has curves, and return the files."""
    panels: dict[str, list[Any]] = {}
    for experiment, of_seeds in sorted(curves.items()):
        if len({steps for steps, *_ in quartiles_of(of_seeds)}) == 1:  # learned in the first iteration
            continue
        suite = _RECORDED_SUITE if experiment in RECORDED else suite_of(experiment)
        reference = reference_of(experiment, runs.get(experiment, ()))
        panels.setdefault(suite, []).append(panel_of(experiment, of_seeds, reference))
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for suite in filter(panels.__contains__, ORDER):
        unit = "rows learned from" if suite == _RECORDED_SUITE else "env steps"
        files.append(picture_of(suite, folder))
        files[-1].write_text(picture_of_suite(panels[suite], unit), encoding="utf-8")
    return files


def main() -> None:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, default=TRAINING_CURVES)
    parser.add_argument("--pictures", type=Path, default=PICTURES)
    arguments = parser.parse_args()
    for file in draw(read_curves(arguments.curves), read_runs(LEARNING) | read_runs(ZOO), arguments.pictures):
        print(f"{file}  {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
