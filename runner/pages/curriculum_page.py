"""The tasks of a curriculum on the page of its run: how often each was drawn, and what its episodes were worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from runner.pages import charts
from runner.pages.page import Block, Figure
from runner.tracking.growing_columns import Column
from runner.tracking.series import axis_of, axis_title, plain, thin

CURRICULUM = "curriculum/"
_NUM_EPISODES, _VALUE = "/num_episodes", "/value_mean"
_MOST_POINTS = 150


def curriculum(columns: Mapping[str, Column], axis: str) -> Iterator[Block]:
    """Yield the charts of a run's curriculum; nothing where there is none.

    Args:
        columns: metric -> its value in each iteration.
        axis: metric that they are drawn over.
    """
    numbers = _of_tasks(columns, _NUM_EPISODES)
    if numbers and len(axis_of(columns, axis)) > 1:
        yield _drawn(numbers, axis_of(columns, axis), axis)
        yield _values(_of_tasks(columns, _VALUE), axis_of(columns, axis), axis)


def _of_tasks(columns: Mapping[str, Column], ending: str) -> dict[str, Column]:
    return {
        name.removeprefix(CURRICULUM).removesuffix(ending): column
        for name, column in columns.items()
        if name.startswith(CURRICULUM) and name.endswith(ending)
    }


def _drawn(numbers: Mapping[str, Column], x: Column, axis: str) -> Figure:
    """Return the share of each task among the episodes that ended since the point before."""
    x, *so_far = thin([x, *(np.nan_to_num(column) for column in numbers.values())], _MOST_POINTS)
    ended = np.diff(np.stack(so_far), axis=1, prepend=0.0)  # (num_tasks, num_points)
    shares = ended / np.maximum(ended.sum(0), 1e-9)
    rows = [
        {"x": plain(at), "y": plain(share), "series": task, "rank": rank}
        for rank, (task, of_task) in enumerate(zip(numbers, shares, strict=True))
        for at, share in zip(x, of_task, strict=True)
    ]
    return Figure(
        name="tasks_drawn",
        chart=charts.stacked_areas(tuple(numbers), axis_title(axis), "share of the episodes"),
        points={charts.POINTS: rows},
        title="which tasks were drawn",
        height=260,
    )


def _values(values: Mapping[str, Column], x: Column, axis: str) -> Figure:
    rows = [
        {"x": plain(at), "y": plain(value), "low": None, "high": None, "series": task}
        for task, column in values.items()
        for at, value in zip(*thin([x[np.isfinite(column)], column[np.isfinite(column)]], _MOST_POINTS), strict=True)
    ]
    return Figure(
        name="task_values",
        chart=charts.curves(tuple(values), axis_title(axis), "mean value of each task"),
        points={charts.POINTS: rows},
        title="values by task",
        caption="Mean of the newest episodes of the task, as many as curriculum.window says.",
        height=260,
    )
