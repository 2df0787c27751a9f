"""The page of a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from runner.pages.page import Fact, Page, Section
from runner.report.sweep_curves import learning_curves, population
from runner.report.sweep_record import SweepRecord, total
from runner.report.sweep_tables import all_trials, best_trial, failed_trials, over_seeds, search_space
from runner.report.sweep_texts import interval_text, large_text, short_values_text
from runner.report.sweep_values import pareto, values_and_objective
from runner.sweep.statistics import Estimate, SeedGroup
from runner.tracking.headline import ENV_STEPS, TOTAL_S, count_text, duration_text, number_text

_STATUSES = ("running", "finished", "stopped", "interrupted", "failed", "waiting")


def sweep_page(record: SweepRecord) -> Page:
    """Return what is known of a sweep."""
    groups = record.ranking.estimates()
    counts = Counter[str](trial.status for trial in record.trials)
    sections = [
        Section("Learning curves", list(learning_curves(record, [group for group, _ in groups]))),
        Section("Over seeds", list(over_seeds(record, groups))),
        Section("Values and objective", list(values_and_objective(record))),
        Section("Pareto front", list(pareto(record))),
        Section("Population", list(population(record))),
        Section("Best trial", list(best_trial(record))),
        Section("Trials", list(all_trials(record))),
        Section("Failed trials", list(failed_trials(record))),
        Section("What was searched", list(search_space(record))),
    ]
    return Page(
        kind="sweep",
        title=record.experiment or "sweep",
        subtitle=" · ".join([str(record.path), *(f"{mode} of {name}" for name, mode in record.objectives.items())]),
        status={status: counts[status] for status in _STATUSES if counts[status]},
        facts=_facts(record, groups),
        sections=[section for section in sections if section.blocks],
        headline=_headline(record, counts),
        is_going_on=record.is_running,
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
    at_once = seconds / record.duration_s if record.duration_s > 0 else 0.0
    return [
        *facts,
        Fact("Trials", str(num_trials), f"{len(groups)} combinations"),
        Fact("Env steps", large_text(total(record, ENV_STEPS)), "of all trials"),
        Fact("Training time", duration_text(seconds), "sum over trials"),
        Fact("Wall clock", duration_text(record.duration_s), f"{at_once:.1f} trials at once, pauses included"),
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
