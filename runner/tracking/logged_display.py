"""A display whose lines are also in the log of the run."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from runner.tracking.display import Display, DisplayInfo, PlainDisplay

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
