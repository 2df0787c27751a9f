"""Tables of a sweep: its best trial, estimates over seeds, all trials, what was searched."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from runner.pages.page import Block, Cell, Code, Table, Text
from runner.report.coordinates import short_names, shorten
from runner.report.sweep_record import SweepRecord
from runner.report.sweep_texts import interval_text, last_part, seed_column, value_cells
from runner.report.tables import count_cell, duration_cell, number_cell, text_cell, value_cell
from runner.sweep.statistics import Estimate, SeedGroup
from runner.sweep.trials import Trial
from runner.tracking.headline import ENV_STEPS, TOTAL_S, number_text
from runner.tracking.mlflow_store import python_command
from runner.tracking.summary import resume_command


def best_trial(record: SweepRecord) -> Iterator[Block]:
    """Yield the best trial: its values, what it reached, and what to type to go on with it."""
    best = record.best
    if best is None:
        yield Text(f"No trial has a value of {record.metric} yet.")
        return
    reached = [(name, number_text(best.result.get(name))) for name in record.objectives]
    rows = [
        *_values_over_time(record, best).items(),
        *reached,
        ("chosen for", record.ranking.reason),
        ("status", _status_text(best)),
    ]
    yield Table(["", f"trial {best.number}"], [[Cell(name), Cell(value)] for name, value in rows], is_sortable=False)
    yield Code("\n".join(_commands(record, best)))


def _values_over_time(record: SweepRecord, trial: Trial) -> dict[str, str]:
    """Return what a trial began with, and what it went on with, by key."""
    values = {key: [str(value)] for key, value in trial.combination.items()}
    for mutation in record.mutations_of(trial):
        for key, value in mutation.after.items():
            if values.setdefault(key, [])[-1:] != [str(value)]:
                values[key].append(str(value))
    return {key: " → ".join(texts) for key, texts in values.items()}


def _commands(record: SweepRecord, trial: Trial) -> Iterator[str]:
    run_dir, python = record.run_dir(trial), python_command()
    yield f"# go on with it\n{resume_command(run_dir)}"
    yield f"# evaluate it\n{python} -m runner evaluate {shlex.quote(str(run_dir))}"
    tuned = shlex.quote(f"conf/experiment/{record.experiment or 'experiment'}_tuned.yaml")
    folder = shlex.quote(str(record.path))
    yield f"# an experiment file with the best values\n{python} -m runner sweep best {folder} --emit {tuned}"
    if not record.mutations_of(trial):  # values that changed on the way are no overrides
        yield f"# train it alone\n{python} -m runner {shlex.join([*record.arguments, *trial.overrides])}"


def over_seeds(record: SweepRecord, groups: Sequence[tuple[SeedGroup, Estimate]]) -> Iterator[Block]:
    """Yield estimates of each combination, the best first; nothing where each has one seed only."""
    if not any(reached.num > 1 for _, reached in groups):
        return
    names = short_names(record.keys)
    columns = [*names.values(), "seeds"]
    for metric in record.objectives:
        columns += [f"{last_part(metric)}, IQM", "95 % interval", "mean"]
    rows = []
    for group, _ in groups:
        row = [value_cell(group.combination.get(key)) for key in record.keys]
        estimates = [group.estimate(metric) for metric in record.objectives]
        row.append(count_cell(max(estimate.num for estimate in estimates)))
        for estimate in estimates:
            row += [
                number_cell(estimate.iqm),
                Cell(interval_text(estimate), estimate.low if estimate.num > 2 else None),
                number_cell(estimate.mean),
            ]
        rows.append(row)
    yield Table(columns, rows)
    yield Text(
        "Of the last values of each trial. IQM, the inter-quartile mean, leaves out the lowest and the highest "
        "quarter. The interval is the 95 % percentile bootstrap interval of the IQM; it needs three seeds."
    )


def all_trials(record: SweepRecord) -> Iterator[Block]:
    """Yield a row for each trial, the best first."""
    if not record.trials:
        yield Text("There are none yet.")
        return
    columns = ["trial", "status", *map(last_part, record.objectives), "env steps", "time"]
    columns += [*short_names(record.keys).values(), *seed_column(record), "ended because"]
    yield Table(columns, [_trial_row(record, trial) for trial in record.trials])


def _trial_row(record: SweepRecord, trial: Trial) -> list[Cell]:
    return [
        count_cell(trial.number),
        text_cell(trial.status),
        *(number_cell(trial.result.get(name)) for name in record.objectives),
        count_cell(trial.result.get(ENV_STEPS)),
        duration_cell(trial.result.get(TOTAL_S)),
        *value_cells(record, trial),
        text_cell(shorten((trial.reason.splitlines() or [""])[0], 90)),
    ]


def failed_trials(record: SweepRecord) -> Iterator[Block]:
    """Yield why each of them failed; nothing where none did."""
    for trial in sorted(record.trials, key=lambda trial: trial.number):
        if trial.status == "failed":
            tries = f", {trial.num_failures} times" if trial.num_failures > 1 else ""
            yield Text(f"Trial {trial.number}{tries}: {' '.join(trial.overrides)}")
            yield Code(f"{trial.reason}\n\nmore in {record.run_dir(trial) / 'runner.log'}")


def search_space(record: SweepRecord) -> Iterator[Block]:
    """Yield what was tried, and what all trials have."""
    space = record.searched["space"]
    rows = [[Cell(key), Cell(_domain_text(domain))] for key, domain in space.items()]
    yield Table(["key", "values"], rows, is_sortable=False)
    yield Text("The same for all trials:")
    yield Code("\n".join(record.searched["overrides"]) or "(nothing)")


def _domain_text(domain: Any) -> str:
    if not isinstance(domain, dict):
        return ", ".join(map(str, domain))
    start, end = domain["interval"]
    kind = "whole numbers" if domain.get("int") else "numbers"
    return f"{kind} from {start:g} to {end:g}{', by logarithm' if domain.get('log') else ''}"


def _status_text(trial: Trial) -> str:
    return f"{trial.status}: {trial.reason}" if trial.reason else trial.status
