"""Page of a single run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from runner.config.errors import Problem, UserError, nearest_match
from runner.config.metric_words import capitalised, learner_words, title_of
from runner.config.metrics import (
    IDLE_S,
    LEARNER_IDLE_S,
    NUM_READY,
    QUARANTINED,
    SYSTEM,
    WEIGHTS_LAG_MAX,
    WEIGHTS_LAG_MEAN,
)
from runner.config.operators import QUEUES
from runner.pages import charts
from runner.pages.optional_sections import SHOWN, optional_sections
from runner.pages.page import Block, Code, Fact, Figure, Page, Section, Text
from runner.pages.run_data import RunData, configuration, embed_video, environment, videos
from runner.tracking.headline import (
    ENV_STEPS,
    EVALUATION_RETURN,
    ITERATION,
    RETURN,
    STEPS_PER_S,
    TOTAL_S,
    bytes_text,
    count_text,
    duration_text,
    number_text,
    reward_scale_hint,
)
from runner.tracking.series import Column, axis_of, axis_title, last_values, plain, thin

_MOST_POINTS, _MOST_SMALL_POINTS, _FEW_POINTS, _MOST_KEYS = 400, 150, 25, 3
_ITERATION_S = "time_this_iter_s"
_LEARNERS = "learners/"
_REPLAY, _INTENSITY = "replay_buffers/", "training_intensity"
# Chart -> metrics of a buffer, with the names of their lines.
_OF_BUFFERS = {
    "Stored env steps": {"num_env_steps": "stored", "capacity": "capacity"},
    "Age of the oldest row (batches)": {"age_of_oldest": ""},
    "Mean priority": {"mean_priority": ""},
}
# Metric of an asynchronous plan -> its chart, and the name of its line there.
_ASYNCHRONY = {
    WEIGHTS_LAG_MEAN: ("Age of the weights (updates)", "mean"),
    WEIGHTS_LAG_MAX: ("Age of the weights (updates)", "max"),
    NUM_READY: (title_of(NUM_READY), ""),
    IDLE_S: (title_of(IDLE_S), ""),
    LEARNER_IDLE_S: (title_of(LEARNER_IDLE_S), ""),
}
_SHOWN = ("env_runners/", "evaluation/", _LEARNERS, _REPLAY, f"{QUEUES}/", "timers/", SYSTEM, *SHOWN)
# Axes, and other metrics that only count iterations.
_COUNTS = (
    *(ITERATION, ENV_STEPS, STEPS_PER_S, TOTAL_S, _ITERATION_S),
    *("num_env_steps_sampled", "num_env_steps_trained_lifetime", "num_episodes_lifetime"),
)
_MIN_AND_MAX = "min and max"
# Suffix of a metric, suffixes of the lower and upper ends of its band, and the band's name.
_BANDS = (("_mean", "_min", "_max", _MIN_AND_MAX), ("", "_low", "_high", "interval"))
# Timers that are part of an iteration or in addition to it, in order. The update's timer includes the learner pipeline.
_SAMPLING, _UPDATE, _PIPELINE = "timers/env_runner_sampling", "timers/learner_update", "timers/learner_connector"
_PHASES = {
    "sampling": _SAMPLING,
    "waiting for recorded data": "timers/offline_sampling",
    "learner pipeline": _PIPELINE,
    "update": _UPDATE,
    "weights to env runners": "timers/synch_weights",
    "evaluation": "timers/evaluation",
    "evaluation on recorded data": "timers/offline_evaluation",
}
_OTHER = "other"

Rows = list[dict[str, Any]]


def _quarantined(record: RunData) -> Iterator[Block]:
    """List the simulators whose episodes are left out, and the option that trusts them."""
    columns = {name: column for name, column in record.columns.items() if name.startswith(QUARANTINED)}
    names = [name.removeprefix(QUARANTINED) for name, column in columns.items() if np.isfinite(column[-1])]
    if names:
        yield Text(
            f"The returns of {', '.join(names)} are far outside the returns of the other simulators, so their episodes "
            f"are left out. To trust them, resume with 'rllink.trusted_clients=[{','.join(names)}]'."
        )


def run_page(record: RunData, url_of: Callable[[Path], str] = embed_video) -> Page:
    """Return the page of a run.

    Args:
        record: data of the run.
        url_of: returns the URL of a video; may raise OSError.
    """
    sections = [
        Section("Failure", [Code(record.stop_reason)] if record.status == "failed" else []),
        Section("Clients in quarantine", list(_quarantined(record))),
        Section("Learning curves", list(_learning_curves(record))),
        *optional_sections(record.path, record.columns, record.axis),
        Section("Policy", list(videos(record, url_of))),
        Section("Evaluation", list(_metrics(record, "evaluation/", but=list(_main_metrics(record))))),
        Section("Learner", list(_learner(record))),
        Section("Replay", list(_replay(record))),
        Section("Asynchrony", list(_asynchrony(record))),
        Section("Time", list(_time(record))),
        Section("System", list(_metrics(record, SYSTEM, but=()))),
        Section("Episodes", list(_metrics(record, "env_runners/", but=[*_main_metrics(record), *_ASYNCHRONY]))),
        Section("Other metrics", list(_others(record))),
        Section("Configuration", list(configuration(record))),
        Section("Environment", list(environment(record))),
    ]
    facts = _facts(record)
    return Page(
        kind="run",
        title=record.experiment,
        subtitle=f"{record.path} · {record.stop_reason.splitlines()[0]}" if record.stop_reason else str(record.path),
        status={record.status: 1},
        facts=facts,
        sections=[section for section in sections if section.blocks],
        headline=[
            f"status   {record.status}{f': {record.stop_reason.splitlines()[0]}' if record.stop_reason else ''}",
            *(f"{fact.name.lower():<8} {fact.value}{f' ({fact.note})' if fact.note else ''}" for fact in facts),
        ],
        is_running=record.status == "running",
    )


def _facts(record: RunData) -> list[Fact]:
    last, columns = last_values(record.columns), record.columns
    facts = []
    for title, name in (("Return", RETURN), ("Evaluation", EVALUATION_RETURN)):
        if name in columns:
            facts.append(Fact(title, number_text(last[name]), f"last; best {number_text(np.nanmax(columns[name]))}"))
    steps, seconds = last.get(ENV_STEPS), last.get(TOTAL_S)
    facts.append(Fact("Iterations", count_text(last.get(ITERATION))))
    is_offline = any(name.startswith("offline_data/") for name in columns)
    facts.append(Fact("Env steps", count_text(steps), "used for training" if is_offline else ""))
    speed = f"{count_text(steps / seconds)} env steps per second" if steps and seconds else ""
    return [*facts, Fact("Time", "-" if seconds is None else duration_text(seconds), speed)]


# -- learning curves --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Line:
    """A metric with its name in the legend and its band; `ends` are the metrics of the band."""

    metric: str
    name: str
    y: Column
    low: Column | None = None
    high: Column | None = None
    band: str = ""
    ends: tuple[str, ...] = ()

    @classmethod
    def find(cls, columns: Mapping[str, Column], metric: str, name: str) -> _Line:
        """Return the metric with its band, if it has one."""
        for ending, low_ending, high_ending, band in _BANDS:
            stem = metric.removesuffix(ending)
            low, high = stem + low_ending, stem + high_ending
            if metric.endswith(ending) and low in columns and high in columns:
                return cls(metric, name, columns[metric], columns[low], columns[high], band, (low, high))
        return cls(metric, name, columns[metric])

    def rows(self, x: Column, num_points: int) -> Rows:
        """Return one point per iteration with a value, or per group of iterations."""
        is_known = np.isfinite(self.y)
        is_marked = int(is_known.sum()) <= _FEW_POINTS
        nothing = np.full_like(self.y, np.nan)
        given = (x, self.y, nothing if self.low is None else self.low, nothing if self.high is None else self.high)
        return [
            {
                "x": plain(at),
                "y": plain(y),
                "low": plain(low),
                "high": plain(high),
                "series": self.name,
                "marked": is_marked,
            }
            for at, y, low, high in zip(*thin([array[is_known] for array in given], num_points), strict=True)
        ]


def _main_metrics(record: RunData) -> dict[str, str]:
    """Return the metrics of the first chart with their titles: returns, or else losses."""
    returns = {RETURN: "training", EVALUATION_RETURN: "evaluation"}
    found = {name: title for name, title in returns.items() if name in record.columns}
    if found:
        return found
    losses = [name for name in record.columns if name.startswith(_LEARNERS) and name.endswith("/total_loss")]
    return {name: name.removeprefix(_LEARNERS).removesuffix("/total_loss") for name in losses}


def _learning_curves(record: RunData) -> Iterator[Block]:
    main = _main_metrics(record)
    if not main:
        yield Text("No iteration has ended with a return or a loss yet.")
        return
    first = next(iter(main))
    title = "Mean return" if first in (RETURN, EVALUATION_RETURN) else "Total loss"
    yield _figure(record, "learning_curves", [_Line.find(record.columns, *names) for names in main.items()], title)
    yield from _returns_by_part(record)


def _returns_by_part(record: RunData) -> Iterator[Block]:
    """Yield the returns of agents and of modules, if there are several."""
    for kind in ("agent", "module"):
        prefix = f"env_runners/{kind}_episode_return_mean/"
        names = [name for name in record.columns if name.startswith(prefix)]
        if len(names) > 1 or (names and kind == "agent"):
            lines = [_Line(name, name.removeprefix(prefix), record.columns[name]) for name in names]
            yield _figure(record, f"{kind}_returns", lines, f"Mean return by {kind}", height=260)


def _figure(record: RunData, name: str, lines: Sequence[_Line], title: str, height: int = 340) -> Figure:
    x = axis_of(record.columns, record.axis)
    rows = [line.rows(x, _MOST_POINTS) for line in lines]
    band = next((line.band for line in lines if line.band), "")
    longest = max(map(len, rows))
    is_marked = any(row["marked"] for panel in rows for row in panel)
    texts = ["Bands are from min to max."] if band == _MIN_AND_MAX else []
    num_iterations = len(x)
    if num_iterations > _MOST_POINTS and longest == _MOST_POINTS:
        texts.append(f"Each point is the mean of {num_iterations / _MOST_POINTS:.3g} iterations.")
    return Figure(
        name=name,
        chart=charts.curves(
            tuple(line.name for line in lines),
            axis_title(record.axis),
            title,
            band,
            charts.CurveStyle(is_marked=is_marked),
        ),
        points={charts.POINTS: [row for panel in rows for row in panel]},
        caption=" ".join(texts),
        title=title,
        metric=_metrics_text(lines),
        height=height,
    )


def _metrics_text(lines: Sequence[_Line]) -> str:
    """Return the keys of the metrics, of many only the first ones."""
    shown = [line.metric for line in lines[:_MOST_KEYS]]
    rest = [f"{len(lines) - _MOST_KEYS} more"] if len(lines) > _MOST_KEYS else []
    return ", ".join([*shown, *rest])


def curves_of(record: RunData, metrics: Sequence[str]) -> Figure:
    """Return metrics in one chart; a single one is drawn with its band.

    Raises:
        UserError: the run does not have a metric, or no metric is given.
    """
    for name in metrics or ("",):
        if name not in record.columns:
            nearest = nearest_match(name, list(record.columns))
            what = "this run does not have this metric"
            problem = Problem(what, str(record.path), name, ", ".join(record.columns), nearest)
            raise UserError(problem)
    if len(metrics) == 1:
        title = title_of(metrics[0])
        return _figure(record, "curves", [_Line.find(record.columns, metrics[0], title)], title)
    stem = _common_stem(metrics)
    lines = [_Line(name, name.removeprefix(f"{stem}/"), record.columns[name]) for name in metrics]
    return _figure(record, "curves", lines, stem)


def _common_stem(metrics: Sequence[str]) -> str:
    """Return the common prefix of all names, in parts between slashes."""
    parts = zip(*(name.split("/")[:-1] for name in metrics), strict=False)
    return "/".join(names[0] for names in takewhile(lambda names: len(set(names)) == 1, parts))


# -- small charts -----------------------------------------------------------------------------------------------------


def _learner(record: RunData) -> Iterator[Block]:
    """Yield a hint about the scale of rewards, and one chart per metric with one line per module."""
    if hint := reward_scale_hint(last_values(record.columns)):
        yield Text(hint)
    by_metric: dict[str, list[str]] = {}
    for name in record.columns:
        if name.startswith(_LEARNERS):
            by_metric.setdefault(name.rpartition("/")[2], []).append(name)
    for_modules = {
        metric: [_Line(name, name.removeprefix(_LEARNERS).rpartition("/")[0], record.columns[name]) for name in names]
        for metric, names in by_metric.items()
    }
    panels = [(_learner_title(metric, panel), panel) for metric, panel in for_modules.items()]
    yield from _small_charts(record, panels)


def _learner_title(name: str, panel: Sequence[_Line]) -> str:
    """Return the title of a learner's metric; with several modules, the legend names them."""
    return title_of(panel[0].metric) if len(panel) == 1 else capitalised(learner_words(name))


def _metrics(record: RunData, prefix: str, but: Sequence[str]) -> Iterator[Block]:
    """Yield one chart per metric with a prefix, including its band."""
    names = [name for name in record.columns if name.startswith(prefix) and name not in but]
    names = [name for name in names if "_episode_return_mean/" not in name]  # per agent or module
    lines = {name: _Line.find(record.columns, name, name) for name in names}
    others = [_Line.find(record.columns, name, "") for name in but if name in record.columns]
    of_bands = {end for line in (*lines.values(), *others) for end in line.ends}
    yield from _small_charts(record, [(title_of(name), [line]) for name, line in lines.items() if name not in of_bands])


def _replay(record: RunData) -> Iterator[Block]:
    """Yield the size and age of each buffer, and how often env steps are trained on."""
    buffers = _buffers(record)
    if not buffers:
        return
    last = last_values(record.columns)
    sizes = [f"{name} {bytes_text(int(last[f'{_REPLAY}{name}/num_bytes']))}" for name in buffers]
    yield Text(f"Memory: {', '.join(sizes)}.")
    lines: dict[str, list[_Line]] = {}
    for title, metrics in _OF_BUFFERS.items():
        found = {
            f"{_REPLAY}{name}/{metric}": label if len(buffers) == 1 else ", ".join(filter(None, (name, label)))
            for name in buffers
            for metric, label in metrics.items()
        }
        panel = [_Line(key, label, record.columns[key]) for key, label in found.items() if key in record.columns]
        lines |= {title: panel} if panel else {}
    if _INTENSITY in record.columns:
        lines[title_of(_INTENSITY)] = [_Line(_INTENSITY, "", record.columns[_INTENSITY])]
    yield from _small_charts(record, lines.items())


def _asynchrony(record: RunData) -> Iterator[Block]:
    """Yield the age of the weights of samples, the waiting times, and the sizes of queues."""
    lines: dict[str, list[_Line]] = {}
    for metric, (title, label) in _ASYNCHRONY.items():
        if metric in record.columns:
            lines.setdefault(title, []).append(_Line(metric, label, record.columns[metric]))
    for name in record.columns:
        if name.startswith(f"{QUEUES}/"):
            queue = name.removeprefix(f"{QUEUES}/").removesuffix("/num_items")
            lines.setdefault("Items in the queue", []).append(_Line(name, queue, record.columns[name]))
    yield from _small_charts(record, lines.items())


def _buffers(record: RunData) -> list[str]:
    """Return the names of the replay buffers."""
    names = [name.removeprefix(_REPLAY) for name in record.columns if name.startswith(_REPLAY)]
    return [name.removesuffix("/num_bytes") for name in names if name.endswith("/num_bytes")]


def _others(record: RunData) -> Iterator[Block]:
    drawn = (*_COUNTS, *([_INTENSITY] if _buffers(record) else []))
    names = [name for name in record.columns if not name.startswith(_SHOWN) and name not in drawn]
    yield from _small_charts(record, [(title_of(name), [_Line(name, "", record.columns[name])]) for name in names])


def _small_charts(record: RunData, panels: Iterable[tuple[str, Sequence[_Line]]]) -> Iterator[Block]:
    """Yield charts (title, lines) of the metrics that change, and a sentence listing the constant ones."""
    x, constant = axis_of(record.columns, record.axis), []
    for title, panel in panels:
        values = np.unique(np.concatenate([line.y[np.isfinite(line.y)] for line in panel]))
        if len(values) == 1:
            constant.append(f"{title} {number_text(values[0])} ({_metrics_text(panel)})")
            continue
        rows = [row for line in panel for row in line.rows(x, _MOST_SMALL_POINTS)]
        band = panel[0].band
        series = tuple(line.name for line in panel)
        is_marked = any(row["marked"] for row in rows)
        yield Figure(
            name=panel[0].metric.replace("/", "_"),
            chart=charts.curves(
                series, axis_title(record.axis), title, band, charts.CurveStyle(is_small=True, is_marked=is_marked)
            ),
            points={charts.POINTS: rows},
            title=title,
            metric=_metrics_text(panel),
            height=150 if len(panel) == 1 else 190,
            is_small=True,
        )
    if constant:
        yield Text(f"Constant: {', '.join(constant)}.")


# -- time -------------------------------------------------------------------------------------------------------------


def _time(record: RunData) -> Iterator[Block]:
    phases = _phases(record.columns)
    if phases:
        yield _shares(phases)
        if len(axis_of(record.columns, record.axis)) > 1:
            yield _phases_over_time(record, phases)
    speed = record.columns.get(STEPS_PER_S)
    if speed is not None:
        yield _figure(record, "throughput", [_Line(STEPS_PER_S, "", speed)], title_of(STEPS_PER_S), height=220)


def _phases(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Return the seconds of each iteration by phase; time without a timer is `other`."""
    if _ITERATION_S not in columns:
        return {}
    seconds = {title: np.nan_to_num(columns[name]) for title, name in _PHASES.items() if name in columns}
    if "update" in seconds and "learner pipeline" in seconds:
        seconds["update"] = np.maximum(0.0, seconds["update"] - seconds["learner pipeline"])
    within = [values for title, values in seconds.items() if not title.startswith("evaluation")]
    rest = np.nan_to_num(columns[_ITERATION_S]) - np.sum(within, axis=0, initial=0.0)
    seconds[_OTHER] = np.maximum(0.0, rest)
    return {title: values for title, values in seconds.items() if values.sum() > 0}


def _shares(phases: Mapping[str, Column]) -> Figure:
    totals = {title: float(values.sum()) for title, values in phases.items()}
    whole = sum(totals.values())
    rows = [
        {"name": title, "x": plain(seconds), "text": f"{_seconds_text(seconds)} · {seconds / whole:.1%}"}
        for title, seconds in sorted(totals.items(), key=lambda total: -total[1])
    ]
    return Figure(
        name="time_by_phase",
        chart=charts.bars("seconds of the run"),
        points={charts.POINTS: rows},
        title="Time by phase",
        height=26 * len(rows),
    )


def _seconds_text(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 60 else duration_text(seconds)


def _phases_over_time(record: RunData, phases: Mapping[str, Column]) -> Figure:
    x, *seconds = thin([axis_of(record.columns, record.axis), *phases.values()], _MOST_SMALL_POINTS)
    rows = [
        {"x": plain(at), "y": plain(value), "series": title, "rank": rank}
        for rank, (title, values) in enumerate(zip(phases, seconds, strict=True))
        for at, value in zip(x, values, strict=True)
    ]
    return Figure(
        name="time_per_iteration",
        chart=charts.stacked_areas(tuple(phases), axis_title(record.axis), "seconds"),
        points={charts.POINTS: rows},
        title="Seconds per iteration",
        height=240,
    )
