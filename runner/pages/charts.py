"""Charts for pages and images, from one definition. A figure adds the data as named rows.

Fields have fixed names (`x`, `y`, `series`). Names of metrics and keys are only used as titles, because Vega reads a
dot in a field's name as a path. A chart is a Vega-Lite specification without data and theme colours, and is immutable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import altair as alt

Chart = Mapping[str, Any]
_AltairChart = alt.Chart | alt.LayerChart

# Altair takes 0.1 s per chart, and a live page draws the same charts again and again.
_remembered = lru_cache(maxsize=512)

POINTS, OTHERS, TICKS, CELLS = "points", "others", "ticks", "cells"
DASHED = "dashed"
RAW = "raw"  # layer of charts that the page can smooth
_RAW_OPACITY = 0.35
MOST_COLOURS = 10
_TEXT_WIDTH = 110  # pixels for the text next to a bar
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_GREY = "#8d99a6"
_COLOURS = (
    *("#3b7dc4", "#ee7f2d", "#3f9f5f", "#d64550", "#8d6cc3"),
    *("#2ea3a8", "#c99a1a", "#a0704f", "#e07bb0", "#7f8c3a"),
)


def _theme(ground: str, text: str, quiet: str, line: str, ramp: Sequence[str]) -> dict[str, Any]:
    return {
        "background": "transparent",
        "font": _FONT,
        "axis": {
            "labelColor": quiet,
            "titleColor": quiet,
            "gridColor": line,
            "domainColor": line,
            "tickColor": line,
            "labelFontSize": 11,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "titlePadding": 8,
        },
        "legend": {"labelColor": text, "titleColor": quiet, "labelFontSize": 12, "titleFontWeight": "normal"},
        "text": {"color": text},
        "style": {"halo": {"stroke": ground, "strokeWidth": 4, "strokeJoin": "round"}, "label": {"fill": text}},
        "rule": {"color": quiet},
        "view": {"stroke": None},
        "range": {"category": list(_COLOURS), "ramp": list(ramp), "heatmap": list(ramp)},
    }


THEMES: Mapping[str, dict[str, Any]] = {
    "light": _theme("#ffffff", "#1c232b", "#5d6875", "#e6e9ed", ("#c3d3e3", "#5d9bd1", "#0b4a8f")),
    "dark": _theme("#1b2027", "#e3e7ec", "#98a3b0", "#2d343d", ("#33465c", "#4a8fd0", "#cfe8ff")),
}


@dataclass(frozen=True)
class CurveStyle:
    """Style of `curves`.

    Attributes:
        is_small: whether several charts are shown in a row.
        is_log: whether the y-axis is logarithmic.
        is_stepped: whether a value holds until the next one.
        is_marked: whether points with `marked` are shown, for lines of few points.
        has_others: whether rows in `OTHERS` are drawn in grey.
    """

    is_small: bool = False
    is_log: bool = False
    is_stepped: bool = False
    is_marked: bool = False
    has_others: bool = False


PLAIN_CURVES = CurveStyle()


@_remembered
def curves(
    series: tuple[str, ...],
    x_title: str,
    y_title: str,
    band: str = "",
    style: CurveStyle = PLAIN_CURVES,
) -> Chart:
    """Return lines with bands around them. If the page smooths them, the values in `raw` are drawn faintly.

    Hovering shows the nearest point; clicking on the legend shows a single line.

    Args:
        series: names of the lines, in the order of the legend. If there are more than colours, all are grey.
        x_title, y_title: titles of the axes. A small chart only shows them in its tooltip.
        band: meaning of `low` and `high` of a point, or empty without a band.
        style: style of the lines.

    Rows of `POINTS`, `OTHERS`: `x`, `y`, `low`, `high`, `series`, and optionally `part` (`DASHED`), `marked` and `raw`.
    """
    chosen = alt.selection_point(name="chosen", fields=["series"], bind="legend")
    x_axis = alt.Axis(format="~s", grid=False, tickCount=4 if style.is_small else 8)
    x = alt.X("x:Q", title=None if style.is_small else x_title, axis=x_axis, scale=alt.Scale(nice=False))
    y = _vertical("y", y_title, style)
    tooltip = _tooltip(x_title, y_title, len(series) > 1 or style.has_others, band)

    points = alt.Chart(alt.NamedData(POINTS)).encode(x=x)
    base = points.encode(color=_line_colour(series, style.is_small))
    if len(series) > MOST_COLOURS:
        base = points.encode(detail="series:N", color=alt.value(_GREY))
    lines = base.mark_line(
        strokeWidth=1.6 if style.is_small else 2,
        strokeJoin="round",
        interpolate="step-after" if style.is_stepped else "linear",
    ).encode(
        y=y,
        strokeDash=alt.when(alt.datum.part == DASHED).then(alt.value([5, 4])).otherwise(alt.value([1, 0])),
        detail=["series:N", "part:N"],
        opacity=_faded(chosen, 1, 0.12),
    )
    layers: list[alt.Chart] = [lines.add_params(chosen).properties(name="lines")]
    if style.is_marked:
        marks = base.transform_filter(alt.datum.marked).mark_point(filled=True, size=24)
        layers.append(marks.encode(y=y, opacity=_faded(chosen, 1, 0.12)))
    layers.append(_nearest(base.encode(y=y), tooltip))
    if not style.is_stepped:
        # Without smoothing, this line is the same as the other one.
        raw = base.transform_calculate("unsmoothed", "isValid(datum.raw) ? datum.raw : datum.y")
        raw = raw.mark_line(strokeWidth=1, strokeJoin="round").encode(
            y=_vertical("unsmoothed", y_title, style),
            detail=["series:N", "part:N"],
            opacity=_faded(chosen, _RAW_OPACITY, 0.04),
        )
        layers.insert(0, raw.properties(name=RAW))
    if band:
        area = base.mark_area().encode(
            y=_vertical("low", y_title, style),
            y2="high:Q",
            opacity=_faded(chosen, 0.17, 0.02),
        )
        layers.insert(0, area)
    if style.has_others:
        others = alt.Chart(alt.NamedData(OTHERS)).mark_line(color=_GREY, strokeWidth=1, opacity=0.45)
        layers.insert(0, others.encode(x=x, y=y, detail="series:N", tooltip=tooltip[:3]))
    return _without_theme(alt.LayerChart(layer=layers))


def _vertical(field: str, title: str, style: CurveStyle) -> alt.Y:
    """Return the vertical axis of a field."""
    num_ticks = 4 if style.is_small else 6
    axis = alt.Axis(tickCount=num_ticks, format=".3~g") if style.is_log else alt.Axis(tickCount=num_ticks)
    return alt.Y(f"{field}:Q", title=None if style.is_small else title, axis=axis, scale=_scale(style.is_log))


def _faded(chosen: alt.Parameter, chosen_opacity: float, opacity: float) -> Any:
    """Return the opacity of the lines that the legend selects, and of the others."""
    return alt.when(chosen).then(alt.value(chosen_opacity)).otherwise(alt.value(opacity))


def _without_theme(chart: _AltairChart) -> Chart:
    spec: dict[str, Any] = chart.to_dict(format="vega-lite")
    spec.pop("config", None)
    return spec


def _scale(is_log: bool) -> alt.Scale:
    return alt.Scale(type="log") if is_log else alt.Scale(zero=False)


def _line_colour(series: Sequence[str], is_small: bool) -> alt.Color:
    if is_small:
        columns, limit = 2, 130
    else:
        longest = max(map(len, series), default=0)
        columns, limit = 1 if longest > 52 else 2 if longest > 30 else 4, 900
    legend = alt.Legend(
        title=None,
        orient="bottom",
        columns=columns,
        labelLimit=limit,
        symbolType="stroke",
        symbolStrokeWidth=3,
        symbolOpacity=1,
        symbolSize=180,
    )
    return alt.Color("series:N", scale=alt.Scale(domain=list(series)), legend=legend if len(series) > 1 else None)


def _tooltip(x_title: str, y_title: str, has_series: bool, band: str = "") -> list[alt.Tooltip]:
    fields = [alt.Tooltip("series:N", title=" ")] if has_series else []
    fields += [
        alt.Tooltip("x:Q", title=x_title, format=",.10~g"),
        alt.Tooltip("y:Q", title=y_title, format=",.5~g"),
    ]
    ends = ("low", "high") if band else ()
    return fields + [alt.Tooltip(f"{end}:Q", title=f"{band}, {end}", format=",.5~g") for end in ends]


def _nearest(base: alt.Chart, tooltip: list[alt.Tooltip]) -> alt.Chart:
    """Return invisible points that appear with their tooltips near the pointer."""
    hovered = alt.selection_point(
        name="hovered", fields=["x", "series"], on="pointerover", clear="pointerout", nearest=True, empty=False
    )
    is_seen = alt.when(hovered).then(alt.value(1)).otherwise(alt.value(0))
    points = base.mark_point(filled=True, size=60).encode(opacity=is_seen, tooltip=tooltip)
    named: alt.Chart = points.add_params(hovered).properties(name="nearest")
    return named


@_remembered
def parallel_coordinates(axes: tuple[str, ...], objective: str, mode: str) -> Chart:
    """Return a line through the values of each trial; hovering highlights it.

    Args:
        axes: titles of the axes, with the objective last.
        objective: metric that determines the colour of a line.
        mode: max or min, the best end of the objective, which gets the strong colour.

    Rows of `POINTS`: `axis`, `y` (0 to 1), `trial`, `objective`, `values` (text). Rows of `TICKS`: `axis`, `y`, `text`,
    `side` (left or right).
    """
    hovered = alt.selection_point(name="hovered", fields=["trial"], on="pointerover", clear="pointerout")
    x = alt.X(
        "axis:N",
        sort=list(axes),
        title=None,
        scale=alt.Scale(type="point", padding=0.25),
        axis=alt.Axis(
            labelAngle=0, labelLimit=190, labelPadding=10, domain=False, ticks=False, labelFontSize=12, grid=True
        ),
    )
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[0, 1], padding=8))
    bar = alt.Legend(
        title=objective, orient="top", gradientLength=220, gradientThickness=9, titleLimit=400, format=".4~g"
    )
    colour = alt.Color("objective:Q", sort="ascending" if mode == "max" else "descending", legend=bar)
    base = alt.Chart(alt.NamedData(POINTS)).encode(x=x, y=y, detail="trial:N")
    lines = base.mark_line(strokeWidth=1.8, strokeJoin="round", interpolate="monotone").encode(
        color=colour, opacity=alt.when(hovered).then(alt.value(0.9)).otherwise(alt.value(0.08))
    )
    # Wider than the lines, so that they are easy to hover.
    targets = base.mark_line(strokeWidth=11, opacity=0.001, interpolate="monotone").encode(
        tooltip=[
            alt.Tooltip("trial:N", title="trial"),
            alt.Tooltip("objective:Q", title=objective, format=",.5~g"),
            alt.Tooltip("values:N", title="values"),
        ]
    )
    ticks = alt.Chart(alt.NamedData(TICKS)).encode(x=x, y=y)
    marks = ticks.mark_tick(orient="horizontal", thickness=1, size=9, color=_GREY)
    texts = ticks.encode(text="text:N")
    left, right = (texts.transform_filter(alt.datum.side == side) for side in ("left", "right"))
    labels = [
        *(left.mark_text(align="right", dx=-9, fontSize=11, style=style) for style in ("halo", "label")),
        *(right.mark_text(align="left", dx=9, fontSize=11, style=style) for style in ("halo", "label")),
    ]
    layers = [lines, marks, *labels, targets.add_params(hovered).properties(name="targets")]
    return _without_theme(alt.LayerChart(layer=layers))


@_remembered
def scatter(
    x_title: str, y_title: str, x_values: tuple[str, ...] | None = None, is_log: bool = False, is_small: bool = True
) -> Chart:
    """Return one point per trial.

    Args:
        x_title, y_title: titles of the axes. A small chart only shows them in its tooltip.
        x_values: ordered categories, or None if `x` is a number.
        is_log: whether the x-axis is logarithmic.
        is_small: whether several charts are shown in a row.

    Rows of `POINTS`: `x`, `y`, `trial`, `values` (text), `marked`.
    """
    title = None if is_small else x_title
    if x_values is None:
        x = alt.X(
            "x:Q",
            title=title,
            axis=alt.Axis(format=".3~g", tickCount=4 if is_small else 8, grid=False),
            scale=_scale(is_log),
        )
    else:
        axis = alt.Axis(labelAngle=0, labelLimit=max(40, 280 // max(1, len(x_values))))
        x = alt.X("x:N", sort=list(x_values), title=title, axis=axis, scale=alt.Scale(type="point", padding=0.5))
    y = alt.Y("y:Q", title=None if is_small else y_title, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5))
    tooltip = [
        alt.Tooltip("trial:N", title="trial"),
        alt.Tooltip("x:N" if x_values is not None else "x:Q", title=x_title),
        alt.Tooltip("y:Q", title=y_title, format=",.5~g"),
        alt.Tooltip("values:N", title="values"),
    ]
    base = alt.Chart(alt.NamedData(POINTS)).encode(x=x, y=y)
    marked = alt.datum.marked
    points: alt.Chart = base.mark_point(filled=True).encode(
        color=alt.when(marked).then(alt.value(_COLOURS[1])).otherwise(alt.value(_COLOURS[0])),
        size=alt.when(marked).then(alt.value(90)).otherwise(alt.value(42)),
        opacity=alt.when(marked).then(alt.value(1.0)).otherwise(alt.value(0.6)),
        tooltip=tooltip,
    )
    if is_small:
        return _without_theme(points)
    front = base.transform_filter(marked).mark_line(color=_COLOURS[1], strokeWidth=1.5, strokeDash=[4, 3])
    return _without_theme(alt.LayerChart(layer=[front, points]))


@_remembered
def bars(x_title: str) -> Chart:
    """Return bars with text next to them. Rows of `POINTS`: `name`, `x`, `text`, in order."""
    y = alt.Y(
        "name:N", sort=None, title=None, axis=alt.Axis(labelLimit=260, domain=False, ticks=False, labelFontSize=12)
    )
    scale = alt.Scale(nice=False, range=[0, alt.ExprRef(f"width - {_TEXT_WIDTH}")])
    x = alt.X("x:Q", title=x_title, axis=alt.Axis(format="~s", tickCount=6), scale=scale)
    base = alt.Chart(alt.NamedData(POINTS)).encode(x=x, y=y)
    lengths = base.mark_bar(cornerRadiusEnd=3, height=alt.RelativeBandSize(0.62), color=_COLOURS[0])
    texts = base.mark_text(align="left", dx=6, fontSize=12).encode(text="text:N")
    return _without_theme(alt.LayerChart(layer=[lengths, texts]))


@_remembered
def stacked_areas(series: tuple[str, ...], x_title: str, y_title: str) -> Chart:
    """Return stacked areas. Rows of `POINTS`: `x`, `y`, `series`, `rank` (of the series, from the bottom)."""
    chosen = alt.selection_point(name="chosen", fields=["series"], bind="legend")
    legend = alt.Legend(title=None, orient="bottom", columns=3, labelLimit=260, symbolType="square")
    areas: alt.Chart = (
        alt.Chart(alt.NamedData(POINTS), name="areas")
        .mark_area()
        .encode(
            x=alt.X(
                "x:Q", title=x_title, axis=alt.Axis(format="~s", grid=False, tickCount=8), scale=alt.Scale(nice=False)
            ),
            y=alt.Y("y:Q", title=y_title, stack="zero"),
            color=alt.Color("series:N", scale=alt.Scale(domain=list(series)), legend=legend),
            order=alt.Order("rank:Q"),
            opacity=alt.when(chosen).then(alt.value(0.85)).otherwise(alt.value(0.15)),
            tooltip=_tooltip(x_title, y_title, has_series=True),
        )
        .add_params(chosen)
    )
    return _without_theme(areas)


@_remembered
def matrix(rows: tuple[str, ...], columns: tuple[str, ...], x_title: str, title: str) -> Chart:
    """Return one coloured cell per pair. Rows of `POINTS`: `y`, `x`, `value` from 0 to 1, `text`."""
    axis = alt.Axis(labelLimit=160, domain=False, ticks=False, labelAngle=-60)
    cells: alt.Chart = (
        alt.Chart(alt.NamedData(POINTS))
        .mark_rect()
        .encode(
            x=alt.X("x:N", title=x_title, sort=list(columns), axis=axis),
            y=alt.Y("y:N", title=None, sort=list(rows), axis=alt.Axis(labelLimit=160, domain=False, ticks=False)),
            color=alt.Color(
                "value:Q",
                title=title,
                scale=alt.Scale(domain=[0, 1], scheme="redyellowblue"),
                legend=alt.Legend(orient="bottom", gradientLength=200),
            ),
            tooltip=[
                alt.Tooltip("y:N", title="player"),
                alt.Tooltip("x:N", title="against"),
                alt.Tooltip("value:Q", title="score", format=".3f"),
                alt.Tooltip("text:N", title="games"),
            ],
        )
    )
    return _without_theme(cells)


@_remembered
def cells(columns: tuple[str, ...], rows: tuple[str, ...], x_title: str, y_title: str, title: str, mode: str) -> Chart:
    """Return one coloured cell with its number per pair of values.

    Args:
        columns, rows: values in order, rows from the top.
        x_title, y_title: titles of the axes.
        title: title of the colours.
        mode: max or min, the best end of the colours, which gets the strong colour.

    Rows of `POINTS`: `x`, `y`, `value`, `text`, `num` (trials).
    """
    base = alt.Chart(alt.NamedData(POINTS)).encode(
        x=alt.X("x:N", title=x_title, sort=list(columns), axis=alt.Axis(labelAngle=0, labelLimit=120)),
        y=alt.Y("y:N", title=y_title, sort=list(rows), axis=alt.Axis(labelLimit=120)),
        tooltip=[
            alt.Tooltip("x:N", title=x_title),
            alt.Tooltip("y:N", title=y_title),
            alt.Tooltip("value:Q", title=title, format=",.5~g"),
            alt.Tooltip("num:Q", title="trials"),
        ],
    )
    squares = base.mark_rect().encode(color=_objective_colour(title, mode))
    texts = [base.mark_text(fontSize=12, style=style).encode(text="text:N") for style in ("halo", "label")]
    return _without_theme(alt.LayerChart(layer=[squares, *texts]))


@_remembered
def surface(x_title: str, y_title: str, title: str, mode: str, is_x_log: bool, is_y_log: bool) -> Chart:
    """Return trials as points above coloured cells.

    Args:
        x_title, y_title: titles of the axes.
        title: title of the colours.
        mode: max or min, the best end of the colours, which gets the strong colour.
        is_x_log, is_y_log: whether an axis is logarithmic.

    Rows of `CELLS`: `x`, `x2`, `y`, `y2`, `value`. Rows of `POINTS`: `x`, `y`, `value`, `trial`, `values` (text).
    """
    colour = _objective_colour(title, mode)
    x = alt.X("x:Q", title=x_title, axis=alt.Axis(format=".3~g", tickCount=8, grid=False), scale=_scale(is_x_log))
    y = alt.Y("y:Q", title=y_title, axis=alt.Axis(format=".3~g", tickCount=6, grid=False), scale=_scale(is_y_log))
    between = alt.Chart(alt.NamedData(CELLS)).mark_rect(strokeWidth=0.7)
    between = between.encode(x=x, x2="x2:Q", y=y, y2="y2:Q", color=colour, stroke=alt.Stroke("value:Q", legend=None))
    points = (
        alt.Chart(alt.NamedData(POINTS))
        .mark_point(filled=True, size=60, opacity=1, stroke=_GREY, strokeWidth=1)
        .encode(
            x=x,
            y=y,
            color=colour,
            tooltip=[
                alt.Tooltip("trial:N", title="trial"),
                alt.Tooltip("value:Q", title=title, format=",.5~g"),
                alt.Tooltip("values:N", title="values"),
            ],
        )
    )
    return _without_theme(alt.LayerChart(layer=[between, points]))


def _objective_colour(title: str, mode: str) -> alt.Color:
    legend = alt.Legend(title=title, orient="top", gradientLength=220, gradientThickness=9, format=".4~g")
    return alt.Color("value:Q", sort="ascending" if mode == "max" else "descending", legend=legend)
