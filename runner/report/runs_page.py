"""Page of all runs below a folder: a table, and the curves and configurations of selected runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runner.config.metric_words import title_of
from runner.pages import charts
from runner.pages.page import PAGE_SCRIPT, Cell, Content, Table, render_document, templates
from runner.report.runs_record import MOST_RUNS, RunEntry, RunsRecord, differing_keys
from runner.report.sweep_record import count_cell, duration_cell, number_cell, shorten, text_cell
from runner.tracking.headline import ENV_STEPS, EVALUATION_RETURN, ITERATION, RETURN, STEPS_PER_S, TOTAL_S
from runner.tracking.series import Column, axis_of, choose_axis, thin

_FOLDER = Path(__file__).parent
_SCRIPT, _TEMPLATE = _FOLDER / "runs.js", _FOLDER / "runs.html.j2"
_COLUMNS = (
    *("#", "experiment", "run", "status", "seed", "last return", "best return", "last evaluation", "env steps"),
    *("time", "started", "end reason"),
)
_MOST_NUMBERS = 800_000  # of all curves together, about 8 MB
_MOST_POINTS, _FEWEST_POINTS = 150, 20
_NUM_SELECTED = 5  # runs that are selected when the page opens
_X = "env steps", "seconds", "iterations"
_MAIN_METRICS = (RETURN, EVALUATION_RETURN, "env_runners/episode_len_mean", STEPS_PER_S)
# Placeholders in the chart, which the script replaces by titles and names.
_X_TITLE, _Y_TITLE, _SERIES = "{x}", "{y}", ("{series}", "{more}")


@dataclass(frozen=True)
class RunsPage:
    """Page of all runs below a folder.

    Attributes:
        html: the page as a single self-contained text.
        headline: lines for the terminal.
    """

    html: str
    headline: Sequence[str]


def runs_page(record: RunsRecord) -> RunsPage:
    """Return the page of the runs."""
    counts = Counter(run.status for run in record.runs)
    table = Table(_COLUMNS, [_row(number, run) for number, run in enumerate(record.runs)])
    template = templates().from_string(_TEMPLATE.read_text(encoding="utf-8"))
    html = template.render(
        path=str(record.path),
        status=dict(counts.most_common()),
        columns=table.columns,
        rows=table.rows,
        is_number=[table.is_number(column) for column in range(len(_COLUMNS))],
        left_out=f"{record.num_left_out} older runs are left out; the page shows at most {MOST_RUNS}."
        if record.num_left_out
        else "",
        data=_data(record.runs),
    )
    title = f"{record.path.absolute().name} - runs"
    document = render_document(title, Content(html, {}), [PAGE_SCRIPT, _SCRIPT], "media-src data:")
    shown = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    return RunsPage(document, [f"runs     {len(record.runs)}: {shown}"])


# -- table ------------------------------------------------------------------------------------------------------------


def _row(number: int, run: RunEntry) -> list[Cell]:
    return [
        count_cell(number + 1),
        text_cell(run.experiment),
        text_cell(run.path),
        text_cell(run.status),
        _seed_cell(run.config.get("seed")),
        number_cell(run.last(RETURN)),
        number_cell(run.best(RETURN)),
        number_cell(run.last(EVALUATION_RETURN)),
        count_cell(run.last(ENV_STEPS)),
        duration_cell(run.last(TOTAL_S)),
        text_cell(run.started),
        text_cell(shorten(run.reason, 90)),
    ]


def _seed_cell(seed: str | None) -> Cell:
    return Cell(seed or "-", float(seed) if seed and seed.isdecimal() else seed)


# -- data for the script ----------------------------------------------------------------------------------------------


def _data(runs: Sequence[RunEntry]) -> dict[str, Any]:
    """Return curves and configurations: short lists, with metrics and keys as numbers."""
    metrics, num_points = _metrics_that_fit(runs)
    keys = differing_keys(list(runs))
    return {
        "metrics": [{"key": metric, "title": title_of(metric)} for metric in metrics],
        "axes": list(_X),
        "keys": keys,
        "runs": [_run(number, run, metrics, keys, num_points) for number, run in enumerate(runs)],
        "chart": charts.curves(_SERIES, _X_TITLE, _Y_TITLE),
        "selected": _first_selected(runs),
    }


def _first_selected(runs: Sequence[RunEntry]) -> list[int]:
    with_return = [number for number, run in enumerate(runs) if run.last(RETURN) is not None]
    return (with_return or [number for number, run in enumerate(runs) if run.columns])[:_NUM_SELECTED]


def _metrics_that_fit(runs: Sequence[RunEntry]) -> tuple[list[str], int]:
    """Return the metrics of the page, main ones first, and the points of a curve, so that the file stays small."""
    counts = Counter(metric for run in runs for metric in run.columns)
    main = [metric for metric in _MAIN_METRICS if metric in counts]
    others = sorted(set(counts) - set(main))
    num_points = _MOST_NUMBERS // max(1, counts.total())
    if num_points < _FEWEST_POINTS:
        others = [metric for metric in others if metric.endswith("/total_loss")]
        num_points = _MOST_NUMBERS // max(1, sum(counts[metric] for metric in (*main, *others)))
    return [*main, *others], max(2, min(num_points, _MOST_POINTS))


def _run(number: int, run: RunEntry, metrics: Sequence[str], keys: Sequence[str], num_points: int) -> dict[str, Any]:
    own = [index for index, metric in enumerate(metrics) if metric in run.columns]
    thinned = thin([*_axes(run), *(run.columns[metrics[index]] for index in own)], num_points) if own else []
    x, y = thinned[: len(_X)], thinned[len(_X) :]
    seed = run.config.get("seed")
    return {
        "name": f"#{number + 1} {shorten(run.experiment)}{f', seed {shorten(seed)}' if seed else ''}",
        "x": [_numbers(column) for column in x],
        "y": {index: _packed(column) for index, column in zip(own, y, strict=True)},
        "config": {index: run.config[key] for index, key in enumerate(keys) if key in run.config},
    }


def _axes(run: RunEntry) -> list[Column]:
    """Return the columns of the x-axes: env steps (or rows trained on), seconds and iterations."""
    return [axis_of(run.columns, name) for name in (choose_axis(run.columns), TOTAL_S, ITERATION)]


def _packed(column: Column) -> list[float | None] | float | None:
    """Return the numbers, or a single one if all are equal."""
    numbers = _numbers(column)
    return numbers[0] if numbers and len(set(numbers)) == 1 else numbers


def _numbers(column: Column) -> list[float | None]:
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in column]
