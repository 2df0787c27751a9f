"""Live display on a terminal, drawn in a separate thread. The training thread only passes a reference."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from runner.tracking import headline
from runner.tracking.display import Display, DisplayInfo
from runner.tracking.plain_values import finite_number

MAX_REFRESHES_PER_S = 4.0
IDLE_REFRESH_INTERVAL_S = 1.0  # keeps the clock running during a long iteration
BAR_WIDTH = 30  # shorter on a narrow terminal
SHORTEST_BAR = 5
BAR = ("\N{BOX DRAWINGS HEAVY HORIZONTAL}", "\N{BOX DRAWINGS LIGHT HORIZONTAL}")
BAR_ASCII = ("#", "-")


class LiveDisplay(Display):
    """A block of lines that is redrawn in place: at most four times per second, once if nothing changes.

    Output of the program to stdout and stderr appears above the block. Log handlers created before `start` write to the
    original stderr, so send their records to `note`.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._console = console
        self._losses = headline.Losses()
        self._best_return: float | None = None
        self._live: Live | None = None
        self._has_news = threading.Event()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._refresh_until_stopped, name="live-display", daemon=True)
        self._finished_s: float | None = None

    def start(self, info: DisplayInfo) -> None:
        super().start(info)
        self._best_return = info.best_return
        with suppress(OSError, ValueError):
            self._print_lines(info.lines(self._console.width))
            live = Live(console=self._console, auto_refresh=False, get_renderable=self.render)
            live.start()
            self._live = live
            atexit.register(self._stop)  # restores the cursor even without a call of finish
            self._thread.start()

    def update(self, metrics: Mapping[str, Any]) -> None:
        number = finite_number(metrics.get(headline.RETURN))
        if number is not None and (self._best_return is None or number > self._best_return):
            self._best_return = number
        super().update(metrics)
        self._has_news.set()

    def note(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._print_lines([text])

    def _close(self, summary_lines: Sequence[str]) -> None:
        self._finished_s = self._clock()
        self._stop()
        with suppress(OSError, ValueError):
            self._print_lines(summary_lines)

    def render(self) -> RenderableType:
        """Return the current block."""
        metrics, width = self._metrics, self._console.width
        self._time_left.update(metrics, self._updated_s)
        counts = [
            ("iteration", headline.count_text(metrics.get(headline.ITERATION))),
            ("env steps", headline.count_text(metrics.get(headline.ENV_STEPS))),
            ("updates", headline.count_text(metrics.get(headline.GRADIENT_STEPS))),
            ("steps/s", headline.count_text(metrics.get(headline.STEPS_PER_S))),
        ]
        return Group(
            *_lines(counts, width),
            *_lines(self._reading(metrics), width),
            *_lines(self._returns(metrics), width, style="bold green"),
            *_lines(self._losses.texts(metrics), width),
            self._progress_line(width),
        )

    def _progress_line(self, width: int) -> Text:
        now_s = self._clock() if self._finished_s is None else self._finished_s
        times = f"{headline.duration_text(now_s - self._started_s)} elapsed"
        if self._finished_s is None:
            times += f", {self._time_left.text(now_s)} left"
        text = Text(no_wrap=True, overflow="ellipsis")
        fraction = self._time_left.fraction_done
        if fraction is not None:
            percent = f" {fraction:4.0%}  "
            bar_width = min(BAR_WIDTH, width - len(percent + times))
            if bar_width >= SHORTEST_BAR:
                done, open_ = BAR_ASCII if self._console.options.ascii_only else BAR
                num_done = int(fraction * bar_width)
                text.append(done * num_done, "cyan").append(open_ * (bar_width - num_done), "dim")
            text.append(percent if text else percent.lstrip())
        return text.append(times)

    def _reading(self, metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
        if self._info.samples_episodes:
            return []
        return [
            ("rows read", headline.count_text(metrics.get(headline.ROWS_READ))),
            ("rows/s", headline.count_text(metrics.get(headline.ROWS_PER_S))),
            ("queued", headline.queued_text(metrics) or "-"),
        ]

    def _returns(self, metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
        fields: list[tuple[str, str]] = []
        if self._info.samples_episodes:
            fields = [
                ("return", headline.number_text(metrics.get(headline.RETURN))),
                ("best", headline.number_text(self._best_return)),
                ("episode length", headline.number_text(metrics.get(headline.EPISODE_LENGTH))),
            ]
        if self._evaluation is not None:
            fields.append(("evaluation", headline.number_text(self._evaluation)))
        return fields

    def _refresh_until_stopped(self) -> None:
        while not self._is_stopping.wait(1.0 / MAX_REFRESHES_PER_S):
            self._has_news.wait(IDLE_REFRESH_INTERVAL_S)
            self._has_news.clear()
            if self._is_stopping.is_set() or self._live is None:
                return
            try:
                self._live.refresh()
            except (OSError, ValueError):
                return  # the terminal has been closed

    def _stop(self) -> None:
        atexit.unregister(self._stop)
        self._is_stopping.set()
        self._has_news.set()
        if self._live is None:
            return
        self._thread.join(1.0)
        with suppress(OSError, ValueError):
            self._live.stop()  # draws the last state
        self._live = None

    def _print_lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._console.print(_encodable(line, self._console), markup=False, highlight=False, soft_wrap=True)


def _encodable(line: str, console: Console) -> str:
    """Replace characters that the terminal cannot encode; rich would keep them, and fail at all further lines too."""
    try:
        line.encode(console.encoding, getattr(console.file, "errors", None) or "strict")
    except UnicodeEncodeError:
        return line.encode("ascii", "replace").decode()
    return line


def _lines(fields: Sequence[tuple[str, str]], width: int, style: str = "bold") -> list[Text]:
    """Return the fields in aligned columns, wrapped at `width`."""
    lines: list[Text] = []
    for label, value in fields:
        text = f"{value:<{headline.NUMBER_WIDTH}}"
        if not lines or len(lines[-1]) + len(f"{label} {text}") > width:
            lines.append(Text(no_wrap=True, overflow="ellipsis"))
        lines[-1].append(f"{label} ", "dim").append(f"{text}  ", style)
    for line in lines:
        line.rstrip()
    return lines
