"""Page sections that only some runs have: the tasks of a curriculum, the standings of a league."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runner.config.documents import parse_json, read_regular
from runner.config.league import LEAGUE_FOLDER, STANDINGS_FILE
from runner.pages import charts
from runner.pages.page import Block, Cell, Figure, Section, Table, Text
from runner.tracking.series import Column, axis_of, axis_title, plain, thin

_CURRICULUM = "curriculum/"
# Prefixes of metrics that these sections show.
SHOWN = (_CURRICULUM,)
_NUM_EPISODES, _VALUE = "/num_episodes", "/value_mean"
_MOST_POINTS = 150


def optional_sections(run_dir: Path, columns: Mapping[str, Column], axis: str) -> list[Section]:
    """Return the sections of all features; they are empty for features that the run does not use.

    Args:
        run_dir: run dir.
        columns: metric -> its value in each iteration.
        axis: metric of the x-axis.
    """
    return [
        Section("League", _league(run_dir / _STANDINGS)),
        Section("Curriculum", list(_curriculum(columns, axis))),
    ]


def _curriculum(columns: Mapping[str, Column], axis: str) -> Iterator[Block]:
    """Yield the charts of a run's curriculum, if it has one."""
    numbers = _of_tasks(columns, _NUM_EPISODES)
    if numbers and len(axis_of(columns, axis)) > 1:
        yield _drawn(numbers, axis_of(columns, axis), axis)
        yield _values(_of_tasks(columns, _VALUE), axis_of(columns, axis), axis)


def _of_tasks(columns: Mapping[str, Column], ending: str) -> dict[str, Column]:
    return {
        name.removeprefix(_CURRICULUM).removesuffix(ending): column
        for name, column in columns.items()
        if name.startswith(_CURRICULUM) and name.endswith(ending)
    }


def _drawn(numbers: Mapping[str, Column], x: Column, axis: str) -> Figure:
    """Return the share of each task among the episodes that ended since the previous point."""
    x, *so_far = thin([x, *(np.nan_to_num(column) for column in numbers.values())], _MOST_POINTS)
    # (num_tasks, num_points); the count of a task that a resumed run has removed falls to 0
    ended = np.maximum(np.diff(np.stack(so_far), axis=1, prepend=0.0), 0.0)
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
        title="tasks drawn",
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
        caption="Mean over the newest episodes of each task; curriculum.window sets their number.",
        height=260,
    )


_STANDINGS = Path(LEAGUE_FOLDER, STANDINGS_FILE)
_CELL = 26  # pixels
_AFTER_ALL = 2**53  # env steps assigned to learning modules, to sort them after their snapshots


def _league(file: Path) -> list[Block]:
    """Return the table and the matrix of a run's league, if it has one; the file of a foreign run may be damaged."""
    if not file.is_file():
        return []
    try:
        return list(_standings(parse_json(read_regular(file))))
    except (OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return [Text(f"The standings in {_STANDINGS} cannot be read ({type(error).__name__}).")]


def _standings(rows: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    yield Table(
        ("Player", "Elo", "95 %", "Skill", "Its sigma", "Env steps"),
        [[Cell(row["player"], row["player"]), *_numbers(row)] for row in rows],
    )
    points = list(_points(rows))
    if points:
        yield _matrix(rows, points)
    yield Text(
        "Elo is fitted to all games together. The first player that was played (fixed players first) has 1000. Skill "
        "is a TrueSkill belief. The games of a snapshot are counted from the previous snapshot on."
    )


def _numbers(row: Mapping[str, Any]) -> list[Cell]:
    elo, skill, steps = row["elo"], row["skill"], row["env_steps"]
    when = "fixed" if row["is_fixed"] else "now" if steps is None else f"{steps:,}"
    return [
        Cell(f"{elo['value']:.0f}", elo["value"]),
        Cell(f"±{elo['margin']:.0f}" if elo["margin"] else "anchor", elo["margin"]),
        Cell(f"{skill['mu']:.1f}", skill["mu"]),
        Cell(f"{skill['sigma']:.1f}", skill["sigma"]),
        Cell(when, _AFTER_ALL if steps is None else steps),
    ]


def _points(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        for other, (wins, draws, losses) in row["games"].items():
            num_games = wins + draws + losses
            score = (wins + draws / 2) / num_games
            text = f"{wins:.0f} won, {draws:.0f} drawn, {losses:.0f} lost"
            yield {"y": row["player"], "x": other, "value": score, "text": text}


def _matrix(rows: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]]) -> Figure:
    order = [row["player"] for row in rows]
    players = [player for player in order if any(point["y"] == player for point in points)]
    opponents = [player for player in order if any(point["x"] == player for point in points)]
    return Figure(
        name="league_scores",
        chart=charts.matrix(tuple(players), tuple(opponents), "opponent", "score of the row's player"),
        points={charts.POINTS: points},
        title="scores between players",
        caption="1: always wins, 0: always loses; a draw counts as one half. Rows and columns are ordered by Elo.",
        height=_CELL * len(players),
    )
