"""What values of a sweep reach: parallel coordinates, the objective by each key, the Pareto front."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.pages import charts
from runner.pages.page import Block, Figure, Table, Text
from runner.report.coordinates import Axis, short_names
from runner.report.sweep_record import SweepRecord
from runner.report.sweep_texts import last_part, seed_column, value_cells
from runner.report.tables import as_number, count_cell, number_cell
from runner.sweep.space import Value
from runner.sweep.trials import Trial, pareto_front
from runner.tracking.series import plain

Rows = list[dict[str, Any]]


def values_and_objective(record: SweepRecord) -> Iterator[Block]:
    """Yield all searched keys at once, then the objective by each of them."""
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
    """Return trials with their value of the objective, the best one last, so that it is drawn above the others."""
    values = [(trial, as_number(trial.result.get(record.metric))) for trial in reversed(record.trials)]
    return [(trial, value) for trial, value in values if value is not None]


def _parallel_coordinates(
    record: SweepRecord, axes: Mapping[str, Axis], reached: Sequence[tuple[Trial, float]]
) -> Figure:
    objective = Axis.of_metric(last_part(record.metric), [value for _, value in reached])
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
        chart=charts.parallel_coordinates(tuple(axis.title for axis in all_axes), record.metric, record.mode),
        points={charts.POINTS: rows, charts.TICKS: ticks},
        caption=f"A line for each trial through its values to what it reached; hovering brings one out.{missing}",
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
        chart=charts.scatter(key, record.metric, axis.categories, axis.is_log),
        points={charts.POINTS: rows},
        title=f"{last_part(record.metric)} by {axis.title}",
        height=190,
        is_small=True,
    )


def pareto(record: SweepRecord) -> Iterator[Block]:
    """Yield what several objectives allow together; nothing for one objective."""
    front = pareto_front(record.trials, record.objectives)
    if len(record.objectives) < 2 or not front:
        return
    first, second, *others = record.objectives
    rows: Rows = []
    # In the plane of the first two objectives: with more of them, others are on the front as well.
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
    more = f" of these two, of {len(record.objectives)} objectives" if others else ""
    yield Figure(
        name="pareto_front",
        chart=charts.scatter(f"{second} ({modes[second]})", f"{first} ({modes[first]})", is_small=False),
        points={charts.POINTS: rows},
        caption=f"A point for each trial; marked is the front{more}: none is as good in both and better in one.",
        height=320,
    )
    columns = ["trial", *map(last_part, record.objectives), *short_names(record.keys).values(), *seed_column(record)]
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
    yield Text("Trials that no other one dominates in all objectives.")
