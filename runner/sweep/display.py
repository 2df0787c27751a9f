"""What a sweep shows: a line for each change, or a table in place on a terminal; at its end a table of all trials."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TextIO

from runner.config.schemas import ExperimentConfig
from runner.sweep.ranking import rank_folder
from runner.sweep.space import value_text
from runner.sweep.trials import SweepFolder, Trial, pareto_front
from runner.tracking.headline import ENV_STEPS, TOTAL_S, count_text, duration_text


class SweepDisplay:
    """Shows plain lines.

    Args:
        config: of one of its trials.
        facts: what is known at the start, by name.
        stream: where to; None: nothing is shown.
    """

    def __init__(self, config: ExperimentConfig, facts: Mapping[str, str], stream: TextIO | None) -> None:
        self._objectives = config.objectives
        self._facts = facts
        self._stream = stream
        self._started_s = time.monotonic()

    def start(self, folder: SweepFolder) -> None:
        """Show what is about to run."""
        width = max(map(len, self._facts), default=0) + 2
        self._print("sweep", *(f"  {name:<{width}}{value}" for name, value in self._facts.items()))
        if folder.trials:
            self._print(f"  {counts_text(folder)} of an earlier start")

    def note(self, text: str) -> None:
        """Show a line that stays."""
        self._print(text)

    def change(self, folder: SweepFolder, trial: Trial) -> None:
        """Take in that a trial has begun or ended."""
        texts = [f"trial {trial.number:>3}  {trial.status:<11}"]
        if trial.status == "running":
            texts.append(trial.values_text)
        else:
            texts.append(self._result_text(trial))
            if trial.status == "failed":
                texts.append((trial.reason.splitlines() or [""])[0])
        self._print("  ".join(texts))

    def mutate(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """Take in that a trial goes on from another one's state; `row` as in `mutations.jsonl`."""
        changes = [f"{key} {value_text(row['before'][key])} -> {value_text(new)}" for key, new in row["after"].items()]
        self._print(f"trial {trial.number:>3}  takes over trial {row['donor']}  {', '.join(changes)}")

    def update(self, folder: SweepFolder, trial: Trial) -> None:
        """Take in an iteration of a trial."""

    def finish(self, folder: SweepFolder) -> None:
        """Show the closing tables."""
        ranking = rank_folder(folder)
        self._print("", *self._table(ranking.trials))
        if ranking.best is not None:
            self._print(f"best: trial {ranking.best.number}, {ranking.reason}")
        if len(self._objectives) > 1:
            front = pareto_front(ranking.trials, self._objectives)
            names = " and ".join(f"{name.rpartition('/')[2]} ({mode})" for name, mode in self._objectives.items())
            self._print("", f"no other trial is better in {names}", *self._table(front))
        for trial in folder.trials:
            if trial.status == "failed":
                self._print(f"trial {trial.number} failed: {trial.reason}")
        self._print(f"{counts_text(folder)} in {duration_text(time.monotonic() - self._started_s)}  {folder.path}")

    def _table(self, trials: Sequence[Trial]) -> list[str]:
        rows = [self.header(), *map(self.cells, trials)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]

    def header(self) -> list[str]:
        """Return names of the columns of `cells`."""
        objectives = [name.rpartition("/")[2] for name in self._objectives]
        return ["trial", "status", *objectives, "env steps", "time", "values"]

    def cells(self, trial: Trial) -> list[str]:
        """Return a trial as a row of a table."""
        return [str(trial.number), trial.status, *self._result_cells(trial), trial.values_text]

    def _result_cells(self, trial: Trial) -> list[str]:
        values = [trial.result.get(name) for name in self._objectives]
        seconds = trial.result.get(TOTAL_S)
        return [
            *("-" if value is None else f"{value:.6g}" for value in values),
            count_text(trial.result.get(ENV_STEPS)),
            "-" if seconds is None else duration_text(seconds),
        ]

    def _result_text(self, trial: Trial) -> str:
        *values, steps, seconds = self._result_cells(trial)
        named = [f"{name.rpartition('/')[2]} {value}" for name, value in zip(self._objectives, values, strict=True)]
        return f"{', '.join(named)} after {steps} env steps, {seconds}"

    def _print(self, *lines: str) -> None:
        if self._stream is not None:
            with suppress(OSError, ValueError):  # the reader of a pipe has left: the sweep goes on
                print(*lines, sep="\n", file=self._stream, flush=True)


def counts_text(folder: SweepFolder) -> str:
    """Return how many trials there are of each status."""
    statuses = [trial.status for trial in folder.trials]
    return ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses)) or "no trials"
