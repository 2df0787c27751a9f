"""Display of a sweep: one line per change, or a live table on a terminal, and a final table of all trials."""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from runner.config.schemas import ExperimentConfig
from runner.interrupts import request_end
from runner.sweep.space import value_text
from runner.sweep.statistics import rank_folder
from runner.sweep.trials import SweepFolder, Trial, pareto_front
from runner.tracking.display import READER_LEFT
from runner.tracking.display_modes import is_capable_terminal
from runner.tracking.headline import ENV_STEPS, TOTAL_S, TimeLeft, count_text, duration_text


class SweepDisplay:
    """Prints plain lines.

    Args:
        config: configuration of one of the trials.
        facts: name -> text to show at the start.
        stream: where to print, or None for nowhere.
    """

    def __init__(self, config: ExperimentConfig, facts: Mapping[str, str], stream: TextIO | None) -> None:
        self._objectives = config.objectives
        self._facts = facts
        self._stream = stream
        self._started_s = time.monotonic()

    def start(self, folder: SweepFolder) -> None:
        """Show the sweep before it runs."""
        width = max(map(len, self._facts), default=0) + 2
        self._print("sweep", *(f"  {name:<{width}}{value}" for name, value in self._facts.items()))
        if folder.trials:
            self._print(f"  {counts_text(folder)} from an earlier start")

    def note(self, text: str) -> None:
        """Show a permanent line."""
        self._print(text)

    def change(self, folder: SweepFolder, trial: Trial) -> None:
        """Show that a trial has begun or ended."""
        texts = [f"trial {trial.number:>3}  {trial.status:<11}"]
        if trial.status == "running":
            texts.append(trial.values_text)
        else:
            texts.append(self._result_text(trial))
            if trial.status == "failed":
                texts.append((trial.reason.splitlines() or [""])[0])
        self._print("  ".join(texts))

    def mutate(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """Show that a trial continues from the state of another trial; `row` is a row of `mutations.jsonl`."""
        changes = [f"{key} {value_text(row['before'][key])} -> {value_text(new)}" for key, new in row["after"].items()]
        self._print(f"trial {trial.number:>3}  takes over trial {row['donor']}  {', '.join(changes)}")

    def finish(self, folder: SweepFolder, is_interrupted: bool = False) -> None:
        """Show the closing tables, and how to continue if the sweep was interrupted."""
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
        if is_interrupted:
            self._print("interrupted: run the same command again to continue this sweep")

    def _table(self, trials: Sequence[Trial]) -> list[str]:
        rows = [self.header(), *map(self.cells, trials)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]

    def header(self) -> list[str]:
        """Return the names of the columns of `cells`."""
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
            try:
                print(*lines, sep="\n", file=self._stream, flush=True)
            except BrokenPipeError:
                request_end(READER_LEFT)
            except (OSError, ValueError):
                pass  # a full disk or a closed stream does not stop the sweep


def counts_text(folder: SweepFolder) -> str:
    """Return the number of trials of each status."""
    statuses = [trial.status for trial in folder.trials]
    return ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses)) or "no trials"


def make_sweep_display(config: ExperimentConfig, facts: Mapping[str, str], num_trials: int) -> SweepDisplay:
    """Return the display of `tracking.display`; "auto" is live on a terminal and plain otherwise.

    Args:
        config: configuration of one of the trials.
        facts: name -> text to show at the start.
        num_trials: total number of trials.
    """
    mode = config.tracking.display
    if mode == "live" or (mode == "auto" and is_capable_terminal(sys.stdout)):
        return LiveSweepDisplay(config, facts, num_trials)
    return SweepDisplay(config, facts, None if mode == "none" else sys.stdout)


_LINES_AROUND = 6  # header, the line below the table, and the typed command
_STYLES = {"running": "bold", "finished": "green", "stopped": "dim", "failed": "red", "interrupted": "yellow"}


class LiveSweepDisplay(SweepDisplay):
    """Shows running trials first, then the best of the others, up to the height of the terminal.

    Args:
        config: configuration of one of the trials.
        facts: name -> text to show at the start.
        num_trials: total number of trials.
        console: where to print, or None for stdout.
    """

    def __init__(
        self, config: ExperimentConfig, facts: Mapping[str, str], num_trials: int, console: Console | None = None
    ) -> None:
        super().__init__(config, facts, None)
        self._stop = config.stop
        self._num_trials = num_trials
        self._console = console or Console(force_terminal=True, highlight=False)
        self._folder: SweepFolder | None = None
        self._done_before: dict[int, float] = {}
        self._live = Live(console=self._console, refresh_per_second=4, get_renderable=self.render)

    def start(self, folder: SweepFolder) -> None:
        super().start(folder)
        self._folder = folder
        self._done_before = {trial.number: self._fraction_done(trial) for trial in folder.trials}

    def change(self, folder: SweepFolder, trial: Trial) -> None:
        if not self._live.is_started:
            self._live.start()
            atexit.register(self._live.stop)  # restores the cursor even if `finish` is never called
        if trial.status == "failed":
            super().change(folder, trial)

    def finish(self, folder: SweepFolder, is_interrupted: bool = False) -> None:
        self._live.stop()
        atexit.unregister(self._live.stop)
        super().finish(folder, is_interrupted)

    def render(self) -> RenderableType:
        """Return the current table."""
        if self._folder is None:
            return Text()
        trials = list(self._folder.trials)
        running = [trial for trial in trials if trial.status == "running"]
        others = [trial for trial in rank_folder(self._folder).trials if trial.status != "running"]
        table = Table(box=None, pad_edge=False, header_style="dim")
        shown = [*running, *others][: max(1, self._console.height - _LINES_AROUND)]
        rows = [self.cells(trial) for trial in shown]
        *names, last = self.header()
        for column, name in enumerate(names):
            width = max(len(name), *(len(row[column]) for row in rows), 0)
            table.add_column(name, no_wrap=True, min_width=width)
        table.add_column(last, no_wrap=True, overflow="ellipsis")
        for trial, row in zip(shown, rows, strict=True):
            table.add_row(*row, style=_STYLES.get(trial.status, ""))
        return Group(table, Text(self._progress_text(self._folder), no_wrap=True, overflow="ellipsis"))

    def _progress_text(self, folder: SweepFolder) -> str:
        """Return counts, the best trial, and the remaining time at the pace of the trials so far."""
        texts = [f"{counts_text(folder)} of {max(self._num_trials, len(folder.trials))}"]
        metric = next(iter(self._objectives))
        best = rank_folder(folder).best
        if best is not None and best.result.get(metric) is not None:
            texts.append(f"best {best.result[metric]:.6g} (trial {best.number})")
        elapsed_s = time.monotonic() - self._started_s
        texts.append(f"{duration_text(elapsed_s)} elapsed")
        before = sum(self._done_before.values())
        done = sum(map(self._fraction_done, folder.trials)) - before
        left = max(0.0, max(self._num_trials, len(folder.trials)) - before - done)
        texts.append(f"about {duration_text(elapsed_s * left / done)} left" if done > 0.0 else "-:--:-- left")
        return "   ".join(texts)

    def _fraction_done(self, trial: Trial) -> float:
        """Return the finished fraction, 0 to 1; 1 after an early end, but not after a failure that is tried again."""
        if trial.is_over or (trial.status == "failed" and self._live.is_started):
            return 1.0
        progress = TimeLeft(self._stop, {}, 0.0)
        progress.update(trial.result, 0.0)
        return progress.fraction_done or 0.0

    def _print(self, *lines: str) -> None:
        with suppress(OSError, ValueError):  # the terminal is gone
            for line in lines:
                self._console.print(line, markup=False, highlight=False, soft_wrap=True)
