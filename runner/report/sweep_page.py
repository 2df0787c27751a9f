"""Page of a sweep with its tables: best trial, estimates over seeds, all trials, search space."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from runner.config.metric_words import words_of
from runner.pages.page import Block, Cell, Code, Fact, Page, Section, Table, Text
from runner.report.sweep_charts import learning_curves, pareto, population, values_and_objective
from runner.report.sweep_importance import importance
from runner.report.sweep_record import (
    SweepRecord,
    count_cell,
    duration_cell,
    interval_text,
    large_text,
    number_cell,
    seed_column,
    short_names,
    short_values_text,
    shorten,
    text_cell,
    total,
    value_cell,
    value_cells,
)
from runner.sweep.statistics import Estimate, SeedGroup
from runner.sweep.trials import Trial
from runner.tracking.headline import ENV_STEPS, TOTAL_S, count_text, duration_text, number_text, resume_command
from runner.tracking.known_run import runner_command


def best_trial(record: SweepRecord) -> Iterator[Block]:
    """Yield the best trial: its values, its results, and commands to continue or use it."""
    best = record.best
    if best is None:
        yield Text(f"No trial has a value of {words_of(record.metric)} ({record.metric}) yet.")
        return
    reached = [(words_of(name), number_text(best.result.get(name))) for name in record.objectives]
    rows = [
        *_values_over_time(record, best).items(),
        *reached,
        ("chosen for", record.ranking.reason),
        ("status", f"{best.status}: {best.reason}" if best.reason else best.status),
    ]
    yield Table(["", f"trial {best.number}"], [[Cell(name), Cell(value)] for name, value in rows], is_sortable=False)
    yield Code("\n".join(_commands(record, best)))


def _values_over_time(record: SweepRecord, trial: Trial) -> dict[str, str]:
    """Return the initial and later values of a trial by key."""
    values = {key: [str(value)] for key, value in trial.combination.items()}
    for mutation in record.mutations_of(trial):
        for key, value in mutation.after.items():
            if values.setdefault(key, [])[-1:] != [str(value)]:
                values[key].append(str(value))
    return {key: " → ".join(texts) for key, texts in values.items()}


def _commands(record: SweepRecord, trial: Trial) -> Iterator[str]:
    run_dir, runner = record.run_dir(trial), runner_command()
    yield f"# resume it\n{resume_command(run_dir)}"
    yield f"# evaluate it\n{runner} evaluate {shlex.quote(str(run_dir))}"
    own = [value for name, value in pairwise(record.arguments) if name in ("-cd", "--config-dir")]
    tuned = shlex.quote(f"{own[-1] if own else 'conf'}/experiment/{record.experiment or 'experiment'}_tuned.yaml")
    config_dir = f" --config-dir {shlex.quote(own[-1])}" if own else ""
    folder = shlex.quote(str(record.path))
    yield f"# an experiment file with the best values\n{runner} sweep best {folder} -o {tuned}{config_dir}"
    if not record.mutations_of(trial):  # values that changed during the trial cannot be overrides
        yield f"# train it alone\n{runner} {shlex.join([*record.arguments, *trial.overrides])}"


def over_seeds(record: SweepRecord, groups: Sequence[tuple[SeedGroup, Estimate]]) -> Iterator[Block]:
    """Yield estimates of each combination, best first, unless all of them have a single seed."""
    if not any(reached.num > 1 for _, reached in groups):
        return
    names = short_names(record.keys)
    columns = [*names.values(), "seeds"]
    for metric in record.objectives:
        columns += [f"{words_of(metric)}, IQM", "95 % interval", "mean"]
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
        "Computed from the last values of each trial. IQM, the inter-quartile mean, leaves out the lowest and highest "
        "quarter. The interval is the 95 % percentile bootstrap interval of the IQM; it needs three seeds."
    )


def all_trials(record: SweepRecord) -> Iterator[Block]:
    """Yield one row per trial, best first."""
    if not record.trials:
        yield Text("There are no trials yet.")
        return
    columns = ["trial", "status", *map(words_of, record.objectives), "env steps", "time"]
    columns += [*short_names(record.keys).values(), *seed_column(record), "end reason"]
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
    """Yield the reason of each failed trial."""
    for trial in sorted(record.trials, key=lambda trial: trial.number):
        if trial.status == "failed":
            tries = f", {trial.num_failures} times" if trial.num_failures > 1 else ""
            yield Text(f"Trial {trial.number}{tries}: {' '.join(trial.overrides)}")
            yield Code(f"{trial.reason}\n\nmore in {record.run_dir(trial) / 'runner.log'}")


def search_space(record: SweepRecord) -> Iterator[Block]:
    """Yield the searched values and the common overrides."""
    space = record.searched["space"]
    rows = [[Cell(key), Cell(_domain_text(domain))] for key, domain in space.items()]
    yield Table(["key", "values"], rows, is_sortable=False)
    yield Text("Common to all trials:")
    yield Code("\n".join(record.searched["overrides"]) or "(nothing)")


def _domain_text(domain: Any) -> str:
    if not isinstance(domain, dict):
        return ", ".join(map(str, domain))
    start, end = domain["interval"]
    kind = "integers" if domain.get("int") else "numbers"
    return f"{kind} from {start:g} to {end:g}{', log scale' if domain.get('log') else ''}"


_STATUSES = ("running", "finished", "stopped", "interrupted", "failed", "waiting")


def sweep_page(record: SweepRecord) -> Page:
    """Return the page of a sweep."""
    groups = record.ranking.estimates()
    counts = Counter[str](trial.status for trial in record.trials)
    objectives = [f"{mode} of {words_of(name)} ({name})" for name, mode in record.objectives.items()]
    sections = [
        Section("Learning curves", list(learning_curves(record, [group for group, _ in groups]))),
        Section("Over seeds", list(over_seeds(record, groups))),
        Section("Values and objective", list(values_and_objective(record))),
        Section("Importance", list(importance(record))),
        Section("Pareto front", list(pareto(record))),
        Section("Population", list(population(record))),
        Section("Best trial", list(best_trial(record))),
        Section("Trials", list(all_trials(record))),
        Section("Failed trials", list(failed_trials(record))),
        Section("Search space", list(search_space(record))),
    ]
    return Page(
        kind="sweep",
        title=record.experiment or "sweep",
        subtitle=" · ".join([str(record.path), *objectives]),
        status={status: counts[status] for status in _STATUSES if counts[status]},
        facts=_facts(record, groups),
        sections=[section for section in sections if section.blocks],
        headline=_headline(record, counts),
        is_running=record.is_running,
    )


def _facts(record: SweepRecord, groups: Sequence[tuple[SeedGroup, Estimate]]) -> list[Fact]:
    num_trials, seconds = len(record.trials), total(record, TOTAL_S)
    best = record.best
    facts = []
    if best is not None:
        facts.append(
            Fact(
                "Best trial",
                number_text(best.result[record.metric]),
                f"trial {best.number}: {short_values_text(record, best)}",
            )
        )
    if groups and groups[0][1].num > 1:
        reached = groups[0][1]
        note = f"IQM of {reached.num} seeds, {interval_text(reached)}" if reached.num > 2 else "mean of 2 seeds"
        facts.append(Fact("Best combination", number_text(reached.iqm), note))
    num_parallel = seconds / record.duration_s if record.duration_s > 0 else 0.0
    return [
        *facts,
        Fact("Trials", str(num_trials), f"{len(groups)} combinations"),
        Fact("Env steps", large_text(total(record, ENV_STEPS)), "over all trials"),
        Fact("Training time", duration_text(seconds), "sum over trials"),
        Fact("Wall clock", duration_text(record.duration_s), f"{num_parallel:.1f} trials at a time on average"),
    ]


def _headline(record: SweepRecord, counts: Mapping[str, int]) -> list[str]:
    best = record.best
    reached = (
        "none" if best is None else f"trial {best.number}, {record.metric} {number_text(best.result[record.metric])}"
    )
    return [
        f"trials   {', '.join(f'{counts[status]} {status}' for status in _STATUSES if counts[status]) or 'none'}",
        f"best     {reached}",
        *([] if best is None else [f"because  {record.ranking.reason}", f"values   {' '.join(best.overrides)}"]),
        f"cost     {count_text(total(record, ENV_STEPS))} env steps, "
        f"{duration_text(total(record, TOTAL_S))} of training in {duration_text(record.duration_s)}",
    ]
