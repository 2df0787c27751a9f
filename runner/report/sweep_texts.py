"""How pages of sweeps name trials, values and metrics."""

from __future__ import annotations

from collections.abc import Sequence

from runner.pages.page import Cell
from runner.report.coordinates import short_names, value_label
from runner.report.sweep_record import SweepRecord
from runner.report.tables import value_cell
from runner.sweep.space import SEED
from runner.sweep.statistics import FEWEST_VALUES, Estimate, SeedGroup
from runner.sweep.trials import Trial
from runner.tracking.headline import number_text


def label_groups(record: SweepRecord, groups: Sequence[SeedGroup]) -> list[str]:
    """Return a name for each group, made of what it tries; with its first trial where two differ in what is cut off."""
    names = short_names(record.keys)
    labels: list[str] = []
    for group in groups:
        tried = [f"{names.get(key, key)}={value_label(value)}" for key, value in group.combination.items()]
        label = "  ".join(tried) or record.experiment or "all trials"
        labels.append(f"{label} (trial {group.trials[0].number})" if label in labels else label)
    return labels


def short_values_text(record: SweepRecord, trial: Trial) -> str:
    """Return what a trial tries, in few words, without its seed."""
    names = short_names(record.keys)
    return ", ".join(f"{names[key]} {value_label(trial.values[key])}" for key in record.keys if key in trial.values)


def last_part(name: str) -> str:
    """Return the last part of a metric or a key."""
    return name.replace(".", "/").rpartition("/")[2]


def large_text(number: float) -> str:
    """Return at most four digits."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


def value_cells(record: SweepRecord, trial: Trial) -> list[Cell]:
    """Return what a trial runs with: a cell for each searched key, and one for the seed where there are seeds."""
    keys = [*record.keys, *seed_column(record)]
    return [value_cell(trial.values.get(key)) for key in keys]


def seed_column(record: SweepRecord) -> list[str]:
    """Return the column of the seed; none where it is the same for all."""
    return [SEED] if any(SEED in trial.combination for trial in record.trials) else []


def interval_text(reached: Estimate) -> str:
    """Return both ends; "-" with fewer than three seeds."""
    return "-" if reached.num < FEWEST_VALUES else f"{number_text(reached.low)} to {number_text(reached.high)}"
