"""schedule.jsonl: in which order an asynchronous run has taken the samples of its env runners, an iteration a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.config.errors import Problem, UserError
from runner.tracking.progress_log import ProgressLog

ITERATION = "training_iteration"
FILE = "schedule.jsonl"
# Operator -> the number of an env runner for each sample that was taken, -1 where none was ready.
Schedule = Mapping[str, Sequence[int]]


class ScheduleLog:
    """Appends the schedule of iterations to `schedule.jsonl` of a run dir, and reads it."""

    def __init__(self, run_dir: Path) -> None:
        self._log = ProgressLog(run_dir / FILE)

    def append(self, iteration: int, schedule: Schedule) -> None:
        """Write a line; numbers as text with spaces in between."""
        texts = {name: " ".join(map(str, numbers)) for name, numbers in schedule.items()}
        self._log.append({ITERATION: iteration, **texts})

    def after(self, iteration: int) -> dict[str, list[int]]:
        """Return the schedule of all later iterations, one after the other.

        Raises:
            UserError: there are none, or a line is no schedule.
        """
        found: dict[str, list[int]] = {}
        for line in self._log.read():
            if line.get(ITERATION, 0) > iteration:
                iteration += 1
                if line[ITERATION] != iteration:
                    what = f"the schedule of iteration {iteration} was not recorded"
                    raise UserError(Problem(what, str(self._log.path), f"iteration {line[ITERATION]}").render_alone())
                for name, text in line.items():
                    if name != ITERATION:
                        found.setdefault(name, []).extend(self._numbers(text))
        if not found:
            what = f"no schedule of iterations after {iteration} was recorded"
            allowed = "an older checkpoint of a run that samples asynchronously"
            raise UserError(Problem(what, str(self._log.path), allowed=allowed).render_alone())
        return found

    def _numbers(self, text: object) -> list[int]:
        try:
            return [int(number) for number in str(text).split()]
        except ValueError as error:
            what = "a line of the schedule is damaged"
            raise UserError(Problem(what, str(self._log.path), str(text)[:40], "numbers").render_alone()) from error

    def truncate_after(self, iteration: int) -> None:
        """Drop the lines of later iterations."""
        self._log.truncate_after(iteration)

    def close(self) -> None:
        """Close the file."""
        self._log.close()
