"""Watch over an evaluation: report if its episodes do not end, and end it early on request."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from runner.interrupts import end_overdue_evaluation

# Seconds after which an evaluation without a finished episode is reported.
REPORT_AFTER_S = 10.0
_LOOK_UP_S = 0.2
_HINT = "if episodes never end, set evaluation.max_episode_steps"

_log = logging.getLogger(__name__)
_reporters: list[Callable[[str], None]] = []


@contextmanager
def reporting(report: Callable[[str], None]) -> Iterator[None]:
    """Pass reports of evaluations in this process to `report` within the block; elsewhere they are logged."""
    _reporters.append(report)
    try:
        yield
    finally:
        _reporters.remove(report)


class EvaluationWatch:
    """Reports an evaluation that does not finish any episode, and ends it if it delays the end of the run.

    Args:
        what: missing event for the report: "no episode of 8 sub-environments has finished".
        report_after_s: seconds until it is reported; None: `REPORT_AFTER_S`.
    """

    def __init__(self, what: str, report_after_s: float | None = None) -> None:
        self._what = what
        self._report_after_s = REPORT_AFTER_S if report_after_s is None else report_after_s
        self._started_s = time.monotonic()
        self._look_up_s = self._started_s
        self._has_reported = False

    def look(self, has_finished: bool = False) -> None:
        """Check a few times per second; called between two steps of the evaluation.

        Args:
            has_finished: whether the event has happened by now.

        Raises:
            Interrupted: the run was asked to end more than `EVALUATION_PATIENCE_S` ago.
        """
        now_s = time.monotonic()
        if now_s < self._look_up_s:
            return
        self._look_up_s = now_s + _LOOK_UP_S
        end_overdue_evaluation()
        if not (has_finished or self._has_reported) and now_s - self._started_s > self._report_after_s:
            self._has_reported = True
            report = _reporters[-1] if _reporters else _log.warning
            report(f"evaluation: {self._what} after {now_s - self._started_s:.0f} s; {_HINT}")
