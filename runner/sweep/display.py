"""What a sweep shows: a line for each change, and a table at its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TextIO

from runner.config.schemas import ExperimentConfig
from runner.sweep.trials import SweepFolder, Trial, best_first
from runner.tracking.headline import count_text, duration_text

_ENV_STEPS = "num_env_steps_sampled_lifetime"
_TIME = "time_total_s"


class SweepDisplay:
    """Plain lines.

    Args:
        config: of one of its trials; `tracking.display=none` shows nothing.
        facts: what is known at the start, by name.
        stream: where to; None: stdout.
    """

    def __init__(self, config: ExperimentConfig, facts: Mapping[str, str], stream: TextIO | None = None) -> None:
        self._objectives = config.objectives
        self._facts = facts
        self._stream = stream or sys.stdout
        self._is_silent = config.tracking.display == "none"
        self._started_s = time.monotonic()

    def start(self, folder: SweepFolder) -> None:
        """Show what is about to run."""
        width = max(map(len, self._facts), default=0) + 2
        self._print("sweep", *(f"  {name:<{width}}{value}" for name, value in self._facts.items()))
        if folder.trials:
            self._print(f"  {_counts(folder)} of an earlier start")

    def change(self, folder: SweepFolder, trial: Trial) -> None:
        """A trial has begun or ended."""
        texts = [f"trial {trial.number:>3}  {trial.status:<11}"]
        if trial.status == "running":
            texts.append(" ".join(trial.overrides))
        else:
            texts.append(self._result_text(trial))
            if trial.status == "failed":
                texts.append((trial.reason.splitlines() or [""])[0])
        self._print("  ".join(texts))

    def update(self, folder: SweepFolder, trial: Trial) -> None:
        """A trial has done an iteration."""

    def finish(self, folder: SweepFolder) -> None:
        """Show the closing table."""
        rows = [
            [str(trial.number), trial.status, *self._result_cells(trial), " ".join(trial.overrides)]
            for trial in best_first(folder.trials, self._objectives)
        ]
        header = [
            "trial",
            "status",
            *(name.rpartition("/")[2] for name in self._objectives),
            "env steps",
            "time",
            "values",
        ]
        widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
        self._print("")
        for row in (header, *rows):
            self._print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        failed = [trial for trial in folder.trials if trial.status == "failed"]
        for trial in failed:
            self._print(f"trial {trial.number} failed: {trial.reason}")
        self._print(f"{_counts(folder)} in {duration_text(time.monotonic() - self._started_s)}  {folder.path}")

    def _result_cells(self, trial: Trial) -> list[str]:
        values = [trial.result.get(name) for name in self._objectives]
        seconds = trial.result.get(_TIME)
        return [
            *("-" if value is None else f"{value:.6g}" for value in values),
            count_text(trial.result.get(_ENV_STEPS)),
            "-" if seconds is None else duration_text(seconds),
        ]

    def _result_text(self, trial: Trial) -> str:
        *values, steps, seconds = self._result_cells(trial)
        named = [f"{name.rpartition('/')[2]} {value}" for name, value in zip(self._objectives, values, strict=True)]
        return f"{', '.join(named)} after {steps} env steps, {seconds}"

    def _print(self, *lines: str) -> None:
        if not self._is_silent:
            print(*lines, sep="\n", file=self._stream, flush=True)


def _counts(folder: SweepFolder) -> str:
    statuses = [trial.status for trial in folder.trials]
    return ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses)) or "no trials"
