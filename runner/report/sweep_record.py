"""Data of a sweep, and the formatting of trials, values and metrics on its pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.config.errors import Problem, UserError
from runner.locks import owner_of
from runner.pages.page import Cell
from runner.sweep.space import SEED, Value
from runner.sweep.statistics import FEWEST_VALUES, Estimate, Ranking, SeedGroup, rank_folder
from runner.sweep.trials import SweepFolder, Trial
from runner.tracking.headline import TOTAL_S, count_text, duration_text, number_text
from runner.tracking.plain_values import finite_number
from runner.tracking.progress_log import ProgressLog
from runner.tracking.series import Column, Follow, follow_columns


def number_cell(value: object) -> Cell:
    """Return a cell with a number of four digits."""
    return Cell(number_text(value), finite_number(value))


def count_cell(value: object) -> Cell:
    """Return a cell with an integer."""
    return Cell(count_text(value), finite_number(value))


def duration_cell(seconds: object) -> Cell:
    """Return a cell with a duration in hours, minutes and seconds."""
    number = finite_number(seconds)
    return Cell("-" if number is None else duration_text(number), number)


def text_cell(text: str) -> Cell:
    """Return a cell with text."""
    return Cell(text, text or None)


def value_cell(value: object) -> Cell:
    """Return a cell with the value of a key, sorted as a number if possible. Floats have four digits."""
    if value is None:
        return Cell("-")
    number = as_number(value)
    text = number_text(value) if isinstance(value, float) else str(value)
    return Cell(text, str(value) if number is None else number)


def as_number(value: object) -> float | None:
    """Return the number, also if it is given as text; None for other values."""
    if isinstance(value, str):
        try:
            return finite_number(float(value))
        except ValueError:
            return None
    return finite_number(value)


_NUM_TICKS = 5
_LONGEST_TEXT = 28


@dataclass(frozen=True)
class Axis:
    """Axis for the values of a key or a metric.

    Attributes:
        title: title of the axis.
        start, end: numbers at its ends; logarithms if `is_log` is set.
        is_log: whether equal factors have equal distances.
        is_integer: whether only integers occur.
        categories: values as evenly spaced text, or None for numbers.
    """

    title: str
    start: float = 0.0
    end: float = 1.0
    is_log: bool = False
    is_integer: bool = False
    categories: tuple[str, ...] | None = None

    @classmethod
    def of_key(cls, title: str, domain: Any, values: Iterable[Value | None]) -> Axis:
        """Return the axis of a searched key.

        Args:
            title: title of the axis.
            domain: search space as in sweep.json, or None if it is unknown.
            values: values of the trials.
        """
        tried = [value for value in values if value is not None]
        if isinstance(domain, dict) and "interval" in domain:
            numbers = [number for number in (as_number(value) for value in tried) if number is not None]
            start, end = min([*domain["interval"], *numbers]), max([*domain["interval"], *numbers])
            is_log, is_integer = bool(domain.get("log")) and start > 0, bool(domain.get("int"))
            place = math.log if is_log else float
            return cls(title, place(start), place(end), is_log, is_integer)
        return cls(title, categories=tuple(distinct_texts([*(domain or ()), *map(str, tried)])))

    @classmethod
    def of_metric(cls, title: str, numbers: Sequence[float]) -> Axis:
        """Return the axis of a metric with at least one number."""
        return cls(title, min(numbers), max(numbers))

    def position(self, value: Value) -> float | None:
        """Return a position from 0 to 1, or None if the value is not on the axis."""
        if self.categories is not None:
            text = str(value)
            if text not in self.categories:
                return None
            return 0.5 if len(self.categories) == 1 else self.categories.index(text) / (len(self.categories) - 1)
        number = as_number(value)
        if number is None or (self.is_log and number <= 0):
            return None
        place = math.log(number) if self.is_log else number
        return 0.5 if self.end == self.start else (place - self.start) / (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Return positions with their labels."""
        if self.categories is not None:
            step = 1 + len(self.categories) // 24
            return [(self.position(text) or 0.0, shorten(text)) for text in self.categories[::step]]
        if self.end == self.start:
            return [(0.5, number_text(self._number_at(0.5)))]
        numbers = [self._number_at(number / (_NUM_TICKS - 1)) for number in range(_NUM_TICKS)]
        if self.is_log:
            lowest, highest = (round(end / math.log(10), 9) for end in (self.start, self.end))
            powers = [10.0**power for power in range(math.ceil(lowest), math.floor(highest) + 1)]
            numbers = [numbers[0], *powers, numbers[-1]] if len(powers) > 1 else numbers
        if self.is_integer:
            numbers = [float(round(number)) for number in numbers]
        texts = {f"{number:.3g}": number for number in numbers}
        return [(self.position(number) or 0.0, text) for text, number in texts.items()]

    def _number_at(self, position: float) -> float:
        place = self.start + position * (self.end - self.start)
        return math.exp(place) if self.is_log else place


def shorten(text: str, length: int = _LONGEST_TEXT) -> str:
    """Truncate a long text."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def value_label(value: Value) -> str:
    """Return a value as label."""
    return f"{value:.4g}" if isinstance(value, float) else shorten(str(value), 60)


def distinct_texts(texts: Iterable[str]) -> list[str]:
    """Return the distinct texts, in the order of their numbers if all of them are numbers."""
    numbers = {text: as_number(text) for text in texts}
    return list(numbers) if None in numbers.values() else sorted(numbers, key=lambda text: numbers[text] or 0.0)


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return the last part of each key, or the entire key if the part is ambiguous."""
    lasts = [key.lstrip("+").rpartition(".")[2] for key in keys]
    return {key: last if lasts.count(last) == 1 else key for key, last in zip(keys, lasts, strict=True)}


_TRIALS_FILE = "trials.jsonl"


@dataclass(frozen=True)
class Mutation:
    """A trial of a population that continued from another trial with other values."""

    trial: int
    donor: int
    num_env_steps: int
    before: Mapping[str, Value]
    after: Mapping[str, Value]


@dataclass(frozen=True)
class SweepRecord:
    """State of a sweep.

    Attributes:
        path: folder of the sweep.
        experiment, objectives, searched, arguments: see `SweepFolder`.
        ranking: trials, best first. Unfinished ones have the metrics of their last iteration.
        columns: number of a trial -> its columns of objectives, env steps and iterations.
        keys: searched keys, without the seed.
        duration_s: seconds from the start of the first trial to the last change of a trial.
        mutations: mutations in order.
        is_running: whether a process has locked the folder.
    """

    path: Path
    experiment: str
    objectives: Mapping[str, str]
    searched: Mapping[str, Any]
    arguments: list[str]
    ranking: Ranking
    columns: Mapping[int, Mapping[str, Column]]
    keys: list[str]
    duration_s: float
    mutations: list[Mutation]
    is_running: bool = False

    def run_dir(self, trial: Trial) -> Path:
        """Return the run dir of a trial."""
        return self.path / str(trial.number)

    @property
    def metric(self) -> str:
        """Main objective."""
        return next(iter(self.objectives))

    @property
    def mode(self) -> str:
        """Direction of the main objective: max or min."""
        return self.objectives[self.metric]

    @property
    def trials(self) -> list[Trial]:
        """All trials, best first."""
        return self.ranking.trials

    @property
    def best(self) -> Trial | None:
        """Best trial, or None if no trial has a value."""
        return self.ranking.best

    def mutations_of(self, trial: Trial) -> list[Mutation]:
        """Return the mutations of a trial in order."""
        return [mutation for mutation in self.mutations if mutation.trial == trial.number]


def read_sweep(folder: SweepFolder, follow: Follow = follow_columns) -> SweepRecord:
    """Read the data of a sweep.

    Args:
        folder: folder of the sweep.
        follow: replaces `follow_columns`.
    """
    trials, metrics = folder.trials, (*folder.objectives, TOTAL_S)
    columns = {trial.number: follow(folder.run_dir(trial), metrics).read() for trial in trials}
    keys = dict.fromkeys([*folder.searched["space"], *(key for trial in trials for key in trial.combination)])
    known = (finite_number(line.get("time")) for line in ProgressLog(folder.path / _TRIALS_FILE).read())
    times = [time for time in known if time is not None]
    return SweepRecord(
        path=folder.path,
        experiment=folder.experiment,
        objectives=folder.objectives,
        searched=folder.searched,
        arguments=[text.lstrip("+") for text in folder.arguments],  # as users write them
        ranking=rank_folder(folder),
        columns=columns,
        keys=[key for key in keys if key != SEED],
        duration_s=max(times, default=0.0) - min(times, default=0.0),
        mutations=[_mutation(row, folder.path) for row in folder.mutations()],
        is_running=owner_of(folder.path) is not None,
    )


def _mutation(row: Mapping[str, Any], path: Path) -> Mutation:
    try:
        return Mutation(
            trial=int(row["trial"]),
            donor=int(row["donor"]),
            num_env_steps=int(row["num_env_steps"]),
            before=dict(row["before"]),
            after=dict(row["after"]),
        )
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        what = f"a line of mutations.jsonl is not a valid mutation: {type(error).__name__} {error!s:.100}"
        problem = Problem(what, str(path))
        raise UserError(problem) from error


def total(record: SweepRecord, metric: str) -> float:
    """Return the sum over all trials that have the metric."""
    return sum(float(trial.result.get(metric) or 0.0) for trial in record.trials)


def label_groups(record: SweepRecord, groups: Sequence[SeedGroup]) -> list[str]:
    """Return a label for each group from its values; duplicates after truncation also name their first trial."""
    names = short_names(record.keys)
    labels: list[str] = []
    for group in groups:
        tried = [f"{names.get(key, key)}={value_label(value)}" for key, value in group.combination.items()]
        label = "  ".join(tried) or record.experiment or "all trials"
        labels.append(f"{label} (trial {group.trials[0].number})" if label in labels else label)
    return labels


def short_values_text(record: SweepRecord, trial: Trial) -> str:
    """Return a short text of a trial's values, without its seed."""
    names = short_names(record.keys)
    return ", ".join(f"{names[key]} {value_label(trial.values[key])}" for key in record.keys if key in trial.values)


def last_part(name: str) -> str:
    """Return the last part of a metric or a key."""
    return name.replace(".", "/").rpartition("/")[2]


def large_text(number: float) -> str:
    """Return the number with three digits and a unit."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


def value_cells(record: SweepRecord, trial: Trial) -> list[Cell]:
    """Return one cell per searched key, and one for the seed if trials have seeds."""
    keys = [*record.keys, *seed_column(record)]
    return [value_cell(trial.values.get(key)) for key in keys]


def seed_column(record: SweepRecord) -> list[str]:
    """Return the column of the seed, if trials have seeds."""
    return [SEED] if any(SEED in trial.combination for trial in record.trials) else []


def interval_text(reached: Estimate) -> str:
    """Return both ends of the interval, or "-" with fewer than three seeds."""
    return "-" if reached.num < FEWEST_VALUES else f"{number_text(reached.low)} to {number_text(reached.high)}"
