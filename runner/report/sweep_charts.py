"""Charts of a sweep: learning curves, changes of a population, parallel coordinates, the Pareto front."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from runner.config.metric_words import title_of, words_of
from runner.pages import charts
from runner.pages.page import Block, Figure, Table, Text
from runner.report.sweep_record import (
    Axis,
    SweepRecord,
    as_number,
    count_cell,
    label_groups,
    last_part,
    number_cell,
    seed_column,
    short_names,
    text_cell,
    value_cells,
    value_label,
)
from runner.sweep.space import Value
from runner.sweep.statistics import CurveEstimate, SeedGroup, estimate_curve
from runner.sweep.trials import Trial, pareto_front
from runner.tracking.headline import ENV_STEPS, TOTAL_S
from runner.tracking.series import axis_of, axis_title, choose_axis, on_common_grid, plain

_GRID_POINTS, _FEWEST_GRID_POINTS, _MOST_ROWS = 120, 15, 24_000
_FEW_POINTS = 25

Rows = list[dict[str, Any]]


def learning_curves(record: SweepRecord, groups: Sequence[SeedGroup]) -> Iterator[Block]:
    """Yield a chart of the first objective, then of the other objectives that change during a trial."""
    for metric in record.objectives:
        figure = _curves_of(record, groups, metric)
        if figure is not None and (metric == record.metric or metric != TOTAL_S):
            yield figure


def _curves_of(record: SweepRecord, groups: Sequence[SeedGroup], metric: str) -> Figure | None:
    axes = [choose_axis(columns) for columns in record.columns.values() if metric in columns]
    drawn = [group for group in groups if any(metric in record.columns[trial.number] for trial in group.trials)]
    if not drawn:
        return None
    num_points = max(_FEWEST_GRID_POINTS, min(_GRID_POINTS, _MOST_ROWS // len(drawn)))
    labels = label_groups(record, drawn)
    estimated = {
        label: _estimated(record, group, metric, axes[0], num_points)
        for label, group in zip(labels, drawn, strict=True)
    }
    names = list(estimated)
    coloured, others = names[: charts.MOST_COLOURS], names[charts.MOST_COLOURS :]
    rows = [row for name in coloured for row in _rows(name, *estimated[name])]
    num_seeds = [int(curve.num.max()) for _, curve in estimated.values()]
    return Figure(
        name=f"learning_curves_{last_part(metric)}",
        chart=charts.curves(
            tuple(coloured),
            axis_title(axes[0]),
            title_of(metric),
            "95 % interval" if max(num_seeds) > 2 else "",
            charts.CurveStyle(is_marked=any(row["marked"] for row in rows), has_others=bool(others)),
        ),
        points={
            charts.POINTS: rows,
            **({charts.OTHERS: [row for name in others for row in _rows(name, *estimated[name])]} if others else {}),
        },
        caption=_curves_caption(num_seeds, len(others), any(row["part"] == charts.DASHED for row in rows))
        + (" Values are the initial values of a trial." if record.mutations else ""),
        title=title_of(metric),
        metric=metric,
        height=380,
    )


def _estimated(
    record: SweepRecord, group: SeedGroup, metric: str, axis: str, num_points: int
) -> tuple[np.ndarray, CurveEstimate]:
    group_columns = [record.columns[trial.number] for trial in group.trials]
    lines = [(axis_of(columns, axis), columns[metric]) for columns in group_columns if metric in columns]
    longest = max(int(np.isfinite(y).sum()) for _, y in lines)
    grid, values = on_common_grid(lines, min(num_points, longest))
    return grid, estimate_curve(values)


def _rows(name: str, grid: np.ndarray, curve: CurveEstimate) -> Rows:
    """Return one point per x that a seed has reached; the dashed part begins where the full one ends."""
    rows: Rows = []
    is_marked = len(grid) <= _FEW_POINTS
    most = int(curve.num.max())
    for x, y, low, high, num in zip(grid, curve.iqm, curve.low, curve.high, curve.num, strict=True):
        if num == 0:
            continue
        part = "full" if num == most else charts.DASHED
        point = {"x": plain(x), "y": plain(y), "low": plain(low), "high": plain(high), "series": name}
        if rows and rows[-1]["part"] != part:
            rows.append({**rows[-1], "part": part})
        rows.append({**point, "part": part, "marked": is_marked})
    return rows


def _curves_caption(num_seeds: Sequence[int], num_others: int, is_dashed: bool) -> str:
    fewest, most = min(num_seeds), max(num_seeds)
    seeds = f"{most}" if fewest == most else f"{fewest} to {most}"
    if most == 1:
        texts = ["One line per trial, best first."]
    else:
        texts = [f"One line per combination, best first: the inter-quartile mean over its {seeds} seeds."]
    if most > 2:
        texts.append("The band is its 95 % bootstrap confidence interval.")
    elif most == 2:
        texts.append("Two seeds are too few for a confidence interval.")
    if is_dashed:
        texts.append("Dashed: some of its seeds had already ended.")
    if num_others:
        texts.append(f"The other {num_others} are grey.")
    return " ".join([*texts, "Click on the legend to show a single line."])


def population(record: SweepRecord) -> Iterator[Block]:
    """Yield the changed values over time and a table of changes, if the sweep has a population."""
    if not record.mutations:
        return
    mutations = record.mutations
    keys = list(dict.fromkeys(key for m in mutations for key in m.after if m.after[key] != m.before.get(key)))
    names = short_names(keys)
    for key in keys:
        figure = _value_over_time(record, key)
        if figure is not None:
            yield figure
    yield Table(
        ["env steps", "trial", "continued from", *names.values()],
        [
            [
                count_cell(mutation.num_env_steps),
                count_cell(mutation.trial),
                count_cell(mutation.donor),
                *(text_cell(_change_text(mutation.before.get(key), mutation.after.get(key))) for key in keys),
            ]
            for mutation in record.mutations
        ],
    )
    yield Text("A trial that continues from another trial copies its module and tries other values.")


def _change_text(before: Value | None, after: Value | None) -> str:
    if after is None or after == before:
        return ""
    return value_label(after) if before is None else f"{value_label(before)} → {value_label(after)}"


def _value_over_time(record: SweepRecord, key: str) -> Figure | None:
    """Return one step line per trial, or None if the values are not numbers."""
    rows: Rows = []
    for trial in sorted(record.trials, key=lambda trial: trial.number):
        steps = list(_steps_of(record, trial, key))
        values = [as_number(value) for _, value in steps]
        if None in values:
            return None
        name = f"trial {trial.number}"
        rows += [{"x": x, "y": plain(y or 0.0), "series": name} for (x, _), y in zip(steps, values, strict=True)]
    numbers = [row["y"] for row in rows]
    if not numbers:
        return None
    is_log = min(numbers) > 0 and max(numbers) / min(numbers) >= 10
    series = tuple(dict.fromkeys(row["series"] for row in rows))
    return Figure(
        name=f"population_{last_part(key)}",
        chart=charts.curves(series, "env steps", key, style=charts.CurveStyle(is_log=is_log, is_stepped=True)),
        points={charts.POINTS: rows},
        caption=f"{key} of each trial over its env steps{', logarithmic' if is_log else ''}.",
        title=key,
        height=260,
    )


def _steps_of(record: SweepRecord, trial: Trial, key: str) -> Iterator[tuple[int, Value]]:
    mutations = [mutation for mutation in record.mutations_of(trial) if key in mutation.after]
    first = mutations[0].before.get(key) if mutations else trial.combination.get(key)
    if first is None:
        return
    yield 0, first
    for mutation in mutations:
        yield mutation.num_env_steps, mutation.after[key]
    end = int(trial.result.get(ENV_STEPS) or 0)
    yield end, mutations[-1].after[key] if mutations else first


def values_and_objective(record: SweepRecord) -> Iterator[Block]:
    """Yield a chart of all searched keys, then the objective over each of them."""
    reached = _reached(record)
    if not reached or not record.keys:
        return
    space, names = record.searched["space"], short_names(record.keys)
    axes = {
        key: Axis.of_key(names[key], space.get(key), (trial.values.get(key) for trial in record.trials))
        for key in record.keys
    }
    yield _parallel_coordinates(record, axes, reached)
    for key, axis in axes.items():
        yield _against_objective(record, key, axis, reached)


def _reached(record: SweepRecord) -> list[tuple[Trial, float]]:
    """Return trials with their objective, best last, so that it is drawn on top."""
    values = [(trial, as_number(trial.result.get(record.metric))) for trial in reversed(record.trials)]
    return [(trial, value) for trial, value in values if value is not None]


def _parallel_coordinates(
    record: SweepRecord, axes: Mapping[str, Axis], reached: Sequence[tuple[Trial, float]]
) -> Figure:
    objective = Axis.of_metric(words_of(record.metric), [value for _, value in reached])
    rows: Rows = []
    for trial, value in reached:
        shared = {"trial": trial.number, "objective": plain(value), "values": trial.values_text}
        places = [(axis.title, _place(axis, trial.values.get(key))) for key, axis in axes.items()]
        places.append((objective.title, objective.position(value)))
        rows += [{"axis": title, "y": plain(y), **shared} for title, y in places if y is not None]
    all_axes = [*axes.values(), objective]
    ticks = [
        {"axis": axis.title, "y": plain(y), "text": text, "side": "right" if axis is objective else "left"}
        for axis in all_axes
        for y, text in axis.ticks()
    ]
    num_without = len(record.trials) - len(reached)
    missing = f" {num_without} trials without a value are left out." if num_without else ""
    return Figure(
        name="parallel_coordinates",
        chart=charts.parallel_coordinates(tuple(axis.title for axis in all_axes), title_of(record.metric), record.mode),
        points={charts.POINTS: rows, charts.TICKS: ticks},
        caption=f"One line per trial, through its values to its objective. Hover to highlight a trial.{missing}",
        height=360,
    )


def _place(axis: Axis, value: Value | None) -> float | None:
    return None if value is None else axis.position(value)


def _against_objective(record: SweepRecord, key: str, axis: Axis, reached: Sequence[tuple[Trial, float]]) -> Figure:
    best = record.best
    rows: Rows = []
    for trial, value in reached:
        drawn = trial.values.get(key)
        x = None if drawn is None else str(drawn) if axis.categories is not None else as_number(drawn)
        if x is not None:
            shared = {"trial": trial.number, "values": trial.values_text, "marked": trial is best}
            rows.append({"x": x, "y": plain(value), **shared})
    return Figure(
        name=f"objective_by_{last_part(key)}",
        chart=charts.scatter(key, title_of(record.metric), axis.categories, axis.is_log),
        points={charts.POINTS: rows},
        title=f"{title_of(record.metric)} by {axis.title}",
        metric=key,
        height=190,
        is_small=True,
    )


def pareto(record: SweepRecord) -> Iterator[Block]:
    """Yield the trade-off between several objectives."""
    front = pareto_front(record.trials, record.objectives)
    if len(record.objectives) < 2 or not front:
        return
    first, second, *others = record.objectives
    rows: Rows = []
    # Points are marked in the plane of the first two objectives; with more objectives, the front has additional trials.
    marked = {
        trial.number
        for trial in pareto_front(record.trials, {name: record.objectives[name] for name in (first, second)})
    }
    for trial in record.trials:
        x, y = as_number(trial.result.get(second)), as_number(trial.result.get(first))
        if x is not None and y is not None:
            shared = {"trial": trial.number, "values": trial.values_text, "marked": trial.number in marked}
            rows.append({"x": plain(x), "y": plain(y), **shared})
    modes = record.objectives
    more = f" of these two among {len(record.objectives)} objectives" if others else ""
    yield Figure(
        name="pareto_front",
        chart=charts.scatter(
            f"{title_of(second)} ({modes[second]})", f"{title_of(first)} ({modes[first]})", is_small=False
        ),
        points={charts.POINTS: rows},
        caption=f"One point per trial. The front{more} is marked: no trial is as good in both and better in one.",
        height=320,
    )
    columns = ["trial", *map(words_of, record.objectives), *short_names(record.keys).values(), *seed_column(record)]
    yield Table(
        columns,
        [
            [
                count_cell(trial.number),
                *(number_cell(trial.result.get(name)) for name in record.objectives),
                *value_cells(record, trial),
            ]
            for trial in front
        ],
    )
    yield Text("Trials that no other trial dominates in all objectives.")
