"""Progress display of a run (live on a terminal, plain lines elsewhere, or none), and its `runner.log`."""

from __future__ import annotations

import errno
import io
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from runner.interrupts import request_end
from runner.tracking import headline

_LINES_PER_HEADER = 30
READER_LEFT = "the reader of the output has left"


@dataclass(frozen=True)
class DisplayInfo:
    """Information shown at the start of a run.

    Attributes:
        title: first line.
        facts: label -> text, shown unchanged.
        stop: metric -> bound that ends the run.
        fewest_episodes: stop metric -> number of finished episodes before it counts.
        initial: last result of a resumed run.
        best_return: highest mean return of a resumed run so far.
        samples_episodes: whether the run samples episodes. If not, the display shows the progress of reading recorded
            data instead of returns.
    """

    title: str
    facts: Mapping[str, str] = field(default_factory=dict)
    stop: Mapping[str, float] = field(default_factory=dict)
    fewest_episodes: Mapping[str, int] = field(default_factory=dict)
    initial: Mapping[str, Any] = field(default_factory=dict)
    best_return: float | None = None
    samples_episodes: bool = True

    def lines(self, width: int | None = None) -> list[str]:
        """Return title, facts and stop criteria, one per line, aligned.

        Criteria that exceed `width` columns are wrapped. Facts are not, so that they can be copied.
        """
        indent = max(map(len, ("stop when", *self.facts))) + 4
        lines = [f"  {name}".ljust(indent) + value for name, value in self.facts.items()]
        stop = "  stop when".ljust(indent)
        for number, criterion in enumerate(headline.stop_texts(self.stop, self.fewest_episodes)):
            joined = f" or {criterion}" if number else criterion
            if number and width is not None and len(stop + joined) > width:
                lines.append(stop)
                stop = " " * (indent - 1)
            stop += joined
        return [self.title, *lines, stop]


class Display:
    """Display of a run, which shows nothing; derived classes show the state that it stores.

    Methods are called in this order from the training thread; errors of the stream are never raised.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._metrics: Mapping[str, Any] = {}
        self._evaluation: Any = None
        self._is_finished = False
        self._begin(DisplayInfo(""))

    def _begin(self, info: DisplayInfo) -> None:
        self._info = info
        self._started_s = self._updated_s = self._clock()
        self._time_left = headline.TimeLeft(info.stop, info.initial, self._started_s)

    def start(self, info: DisplayInfo) -> None:
        """Show the start of the run."""
        self._begin(info)

    def update(self, metrics: Mapping[str, Any]) -> None:
        """Show an iteration. `metrics` is kept without a copy and must not be changed afterwards."""
        self._evaluation = metrics.get(headline.EVALUATION_RETURN, self._evaluation)
        self._updated_s = self._clock()
        self._metrics = metrics

    def note(self, text: str) -> None:
        """Show a permanent line between two updates."""

    def finish(self, summary_lines: Sequence[str], is_done: bool = False) -> None:
        """Show the last iteration and the closing lines. Safe to call twice, or without `start`.

        `is_done` means that a stop criterion is met, so that no time is left.
        """
        if self._is_finished:
            return
        self._is_finished = True
        if is_done:
            self._time_left.end()
        self._close(summary_lines)

    def _close(self, summary_lines: Sequence[str]) -> None:
        """Show the last iteration and the closing lines."""


class PlainDisplay(Display):
    """A table without control codes: the first and last iteration, and at most one per `min_interval_s` in between.

    The header is printed again when the columns change, and every `_LINES_PER_HEADER` lines.
    """

    def __init__(
        self, stream: TextIO, min_interval_s: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(clock)
        self._stream = stream
        self._min_interval_s = min_interval_s
        self._next_line_s = self._started_s
        self._losses = headline.Losses()
        self._is_pending = False
        self._header: tuple[str, ...] = ()
        self._num_lines = 0

    def start(self, info: DisplayInfo) -> None:
        super().start(info)
        self._next_line_s = self._started_s
        self._print(*info.lines())

    def update(self, metrics: Mapping[str, Any]) -> None:
        super().update(metrics)
        self._is_pending = True
        if self._updated_s >= self._next_line_s:
            self._next_line_s = self._updated_s + self._min_interval_s
            self._print_pending()

    def note(self, text: str) -> None:
        self._print(text)

    def _close(self, summary_lines: Sequence[str]) -> None:
        self._print_pending()
        self._print(*summary_lines)

    def _print_pending(self) -> None:
        if not self._is_pending:
            return
        self._time_left.update(self._metrics, self._updated_s)
        columns = self._columns(self._metrics)
        names = tuple(name for name, _ in columns)
        if names != self._header or self._num_lines % _LINES_PER_HEADER == 0:
            self._header = names
            self._print("  ".join(f"{name:>{len(text)}}" for name, text in columns))
        self._print("  ".join(f"{text:>{len(name)}}" for name, text in columns))
        self._num_lines += 1
        self._is_pending = False

    def _columns(self, metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return name and text of each column; the strings of a column have the same width in all lines."""
        now_s = self._updated_s
        columns = [
            ("iter", f"{headline.count_text(metrics.get(headline.ITERATION)):>5}"),
            ("env steps", f"{headline.count_text(metrics.get(headline.ENV_STEPS)):>11}"),
            *(_returns(metrics) if self._info.samples_episodes else _reading(metrics)),
            ("steps/s", f"{headline.count_text(metrics.get(headline.STEPS_PER_S)):>7}"),
        ]
        columns += [(label, f"{text:>{headline.NUMBER_WIDTH}}") for label, text in self._losses.texts(metrics)]
        columns.append(("updates", f"{headline.count_text(metrics.get(headline.GRADIENT_STEPS)):>9}"))
        columns.append(("elapsed", f"{headline.duration_text(now_s - self._started_s):>7}"))
        columns.append(("ETA", f"{self._time_left.text(now_s):>9}"))
        if self._evaluation is not None:
            columns.append(("evaluation", _number(self._evaluation)))
        return columns

    def _print(self, *lines: str) -> None:
        text = "".join(f"{line}\n" for line in lines)
        try:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                self._stream.write(text.encode("ascii", "replace").decode())
            self._stream.flush()
        except BrokenPipeError:
            request_end(READER_LEFT)
        except (OSError, ValueError):
            pass  # a full disk or a closed stream does not stop the training


def _returns(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [("return", _number(metrics.get(headline.RETURN)))]


def _reading(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the progress of reading recorded data."""
    fields = [("rows", f"{headline.count_text(metrics.get(headline.ROWS_READ)):>11}")]
    queued = headline.queued_text(metrics)
    if queued is not None:  # materialised data have been read already
        fields.append(("rows/s", f"{headline.count_text(metrics.get(headline.ROWS_PER_S)):>7}"))
        fields.append(("queued", f"{queued:>10}"))
    return fields


def _number(value: object) -> str:
    return f"{headline.number_text(value):>{headline.NUMBER_WIDTH}}"


@contextmanager
def logged_to_file(run_dir: Path) -> Iterator[None]:
    """Write log records of this process to `runner.log` in this context.

    Raises:
        OSError: the file cannot be opened.
    """
    handler = _QuietFileHandler(run_dir / "runner.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("[%(asctime)s][%(name)s][%(levelname)s] - %(message)s"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(min(level or logging.INFO, logging.INFO))
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        handler.close()


class _QuietFileHandler(logging.FileHandler):
    """Drops records if the disk is full, instead of printing stack traces of `logging` to the terminal."""

    def _open(self) -> TextIOWrapper:
        return os.fdopen(_open_regular(self.baseFilename), "a", encoding=self.encoding)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Do nothing; the run reports problems of the disk."""

    def close(self) -> None:
        """Close the file, even if the disk is too full to flush it."""
        try:
            super().close()
        except OSError:
            self.stream = None


def _open_regular(path: str) -> int:
    """Open a regular file to append to. Rejects links and pipes, which an untrusted run dir may contain."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(f"{path} is a symbolic link, which is not followed") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file")
    return descriptor


_log = logging.getLogger("runner")


class LoggedDisplay:
    """Shows everything on `shown`, and logs the lines of a plain display."""

    def __init__(self, shown: Display) -> None:
        self._displays: tuple[Display, ...] = (shown, PlainDisplay(_LogStream()))  # type: ignore[arg-type]

    def start(self, info: DisplayInfo) -> None:
        for display in self._displays:
            display.start(info)

    def update(self, metrics: Mapping[str, Any]) -> None:
        for display in self._displays:
            display.update(metrics)

    def note(self, text: str) -> None:
        for display in self._displays:
            display.note(text)

    def finish(self, summary_lines: Sequence[str], is_done: bool = False) -> None:
        for display in self._displays:
            display.finish(summary_lines, is_done)


class _LogStream(io.TextIOBase):
    """A stream that turns lines into log records."""

    def write(self, text: str) -> int:
        for line in text.splitlines():
            _log.info("%s", line)
        return len(text)
