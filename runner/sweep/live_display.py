"""A sweep on a terminal: a table of its trials that is redrawn in place."""

from __future__ import annotations

import atexit
import time
from collections.abc import Mapping
from contextlib import suppress

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from runner.config.schemas import ExperimentConfig
from runner.sweep.display import SweepDisplay, counts_text
from runner.sweep.ranking import rank_folder
from runner.sweep.trials import SweepFolder, Trial
from runner.tracking.headline import duration_text
from runner.tracking.time_left import TimeLeft

_LINES_AROUND = 6  # header, the line below the table, and what was typed
_STYLES = {"running": "bold", "finished": "green", "stopped": "dim", "failed": "red", "interrupted": "yellow"}


class LiveSweepDisplay(SweepDisplay):
    """Running trials first, then the best of the others, as many as the terminal has lines for.

    Args:
        config: of one of its trials.
        facts: what is known at the start, by name.
        num_trials: how many there will be.
        console: where to; None: stdout.
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
            atexit.register(self._live.stop)  # the cursor comes back also where nobody calls finish
        if trial.status == "failed":
            super().change(folder, trial)

    def finish(self, folder: SweepFolder) -> None:
        self._live.stop()
        atexit.unregister(self._live.stop)
        super().finish(folder)

    def render(self) -> RenderableType:
        """Return the table as it stands now."""
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
        """Return counts, the best trial, and the time that is left at the pace of the trials so far."""
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
        """Return the part that is done, 0 to 1; 1 for an early end, but not for a failure that is tried again."""
        if trial.is_over or (trial.status == "failed" and self._live.is_started):
            return 1.0
        progress = TimeLeft(self._stop, {}, 0.0)
        progress.update(trial.result, 0.0)
        return progress.fraction_done or 0.0

    def _print(self, *lines: str) -> None:
        with suppress(OSError, ValueError):  # the terminal has gone
            for line in lines:
                self._console.print(line, markup=False, highlight=False, soft_wrap=True)
