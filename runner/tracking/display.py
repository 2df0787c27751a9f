"""What a run shows while it trains (live on a terminal, plain lines elsewhere, or nothing), and its `runner.log`."""

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
from typing import Any, Protocol, TextIO

from runner.tracking import headline
from runner.tracking.headline import TimeLeft


@dataclass(frozen=True)
class DisplayInfo:
    """What is known at the start: `facts` are shown as they are.

    `fewest_episodes` has the stop metrics that count only after so many finished episodes.
    `initial` and `best_return` are a resumed run's last result and its highest mean return so far. A run that samples
    no episodes has no returns to show; instead it shows what it reads of the recorded data.
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

        In a terminal of `width` columns a criterion that does not fit starts a line; what is to be copied stays whole.
        """
        indent = max(map(len, ("stop at", *self.facts))) + 4
        lines = [f"  {name}".ljust(indent) + value for name, value in self.facts.items()]
        stop = "  stop at".ljust(indent)
        for number, criterion in enumerate(headline.stop_texts(self.stop, self.fewest_episodes)):
            joined = f" or {criterion}" if number else criterion
            if number and width is not None and len(stop + joined) > width:
                lines.append(stop)
                stop = " " * (indent - 1)
            stop += joined
        return [self.title, *lines, stop]


class Display(Protocol):
    """Called in this order from the training thread; never raises because of its stream."""

    def start(self, info: DisplayInfo) -> None:
        """Show what is about to run."""

    def update(self, metrics: Mapping[str, Any]) -> None:
        """Show an iteration. `metrics` is not changed afterwards; it is kept without a copy."""

    def note(self, text: str) -> None:
        """Show a line that stays, between two updates."""

    def finish(self, summary_lines: Sequence[str], is_done: bool = False) -> None:
        """Show the last iteration and the closing lines. Safe to call twice, or without `start`.

        `is_done`: a stop criterion is met, so that nothing is left to do.
        """


class NoDisplay:
    """Shows nothing."""

    def start(self, info: DisplayInfo) -> None: ...

    def update(self, metrics: Mapping[str, Any]) -> None: ...

    def note(self, text: str) -> None: ...

    def finish(self, summary_lines: Sequence[str], is_done: bool = False) -> None: ...


class PlainDisplay:
    """Lines without control codes: the first iteration, the last, and one each `min_interval_s` between."""

    def __init__(
        self, stream: TextIO, min_interval_s: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._min_interval_s = min_interval_s
        self._clock = clock
        self._started_s = clock()
        self._next_line_s = self._updated_s = self._started_s
        self._time_left = TimeLeft({}, {}, self._started_s)
        self._losses = headline.Losses()
        self._pending: Mapping[str, Any] | None = None
        self._evaluation: Any = None
        self._samples_episodes = True
        self._is_finished = False

    def start(self, info: DisplayInfo) -> None:
        self._started_s = self._next_line_s = self._clock()
        self._time_left = TimeLeft(info.stop, info.initial, self._started_s)
        self._samples_episodes = info.samples_episodes
        self._print(*info.lines())

    def update(self, metrics: Mapping[str, Any]) -> None:
        self._evaluation = metrics.get(headline.EVALUATION_RETURN, self._evaluation)
        self._pending = metrics
        self._updated_s = self._clock()
        if self._updated_s >= self._next_line_s:
            self._next_line_s = self._updated_s + self._min_interval_s
            self._print_pending()

    def note(self, text: str) -> None:
        self._print(text)

    def finish(self, summary_lines: Sequence[str], is_done: bool = False) -> None:
        if self._is_finished:
            return
        self._is_finished = True
        if is_done:
            self._time_left.end()
        self._print_pending()
        self._print(*summary_lines)

    def _print_pending(self) -> None:
        if self._pending is None:
            return
        self._time_left.update(self._pending, self._updated_s)
        self._print("  ".join(f"{label} {text}" for label, text in self._fields(self._pending)))
        self._pending = None

    def _fields(self, metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
        now_s = self._updated_s
        fields = [
            ("iter", f"{headline.count_text(metrics.get(headline.ITERATION)):>5}"),
            ("steps", f"{headline.count_text(metrics.get(headline.ENV_STEPS)):>11}"),
            *([("return", _number(metrics.get(headline.RETURN)))] if self._samples_episodes else _reading(metrics)),
            ("steps/s", f"{headline.count_text(metrics.get(headline.STEPS_PER_S)):>7}"),
        ]
        fields += [(label, f"{text:>{headline.NUMBER_WIDTH}}") for label, text in self._losses.texts(metrics)]
        fields.append(("updates", f"{headline.count_text(metrics.get(headline.GRADIENT_STEPS)):>9}"))
        fields.append(("elapsed", f"{headline.duration_text(now_s - self._started_s):>7}"))
        fields.append(("left", f"{self._time_left.text(now_s):>9}"))
        if self._evaluation is not None:
            fields.append(("evaluation", _number(self._evaluation)))
        return fields

    def _print(self, *lines: str) -> None:
        try:
            self._stream.write("".join(f"{line}\n" for line in lines))
            self._stream.flush()
        except UnicodeEncodeError:
            self._stream.write("".join(f"{line}\n" for line in lines).encode("ascii", "replace").decode())
        except (OSError, ValueError):
            pass  # the reader of a pipe has left, or the stream is closed: training goes on


def _reading(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what is read of recorded data."""
    fields = [("rows", f"{headline.count_text(metrics.get(headline.ROWS_READ)):>11}")]
    queued = headline.queued_text(metrics)
    if queued is not None:  # kept data have been read already
        fields.append(("rows/s", f"{headline.count_text(metrics.get(headline.ROWS_PER_S)):>7}"))
        fields.append(("queued", f"{queued:>10}"))
    return fields


def _number(value: object) -> str:
    return f"{headline.number_text(value):>{headline.NUMBER_WIDTH}}"


@contextmanager
def logged_to_file(run_dir: Path) -> Iterator[None]:
    """Write log records of this process to `runner.log` within.

    Raises:
        OSError: it cannot be opened.
    """
    handler = _QuietFileHandler(run_dir / "runner.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("[%(asctime)s][%(name)s][%(levelname)s] - %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(min(root.level or logging.INFO, logging.INFO))
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


class _QuietFileHandler(logging.FileHandler):
    """Loses records where the disk is full: a stack trace of `logging` on the terminal would help nobody."""

    def _open(self) -> TextIOWrapper:
        return os.fdopen(_open_regular(self.baseFilename), "a", encoding=self.encoding)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Do nothing; the run says what is wrong with the disk."""

    def close(self) -> None:
        """Close the file; what is buffered may not find room."""
        try:
            super().close()
        except OSError:
            self.stream = None


def _open_regular(path: str) -> int:
    """Open a file to append to that is neither a link nor a pipe: a run dir of somebody else may hold either."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(f"{path} is a symbolic link, and none is followed") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no regular file")
    return descriptor


_log = logging.getLogger("runner")


class LoggedDisplay:
    """Shows everything on `shown`, and logs the lines that a plain display of the same run would have."""

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
    """A stream whose lines become log records."""

    def write(self, text: str) -> int:
        for line in text.splitlines():
            _log.info("%s", line)
        return len(text)
