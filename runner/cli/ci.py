"""Options of training for CI jobs: `--assert`, `--budget`, `--junit`; and the exit code that follows from them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runner.cli.arguments import Arguments, UsageError
from runner.cli.conditions import Condition, parse_assertions
from runner.cli.trained import Case, JudgedValue, Trained, TrainedRun, TrainedSweep, failure, write_report
from runner.config.errors import ConfigError, Problem, RunnerError, UserError
from runner.config.exit_codes import ExitCode
from runner.interrupts import Budget, Interrupted, within

if TYPE_CHECKING:
    from runner.sweep.trials import SweepFolder

_DURATION = re.compile(r"(?=\d)(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m)?(?:(?P<s>\d+(?:\.\d+)?)s)?|(?P<seconds>\d+(?:\.\d+)?)")


def judged(arguments: Arguments, train: Callable[[Verdict], int]) -> int:
    """Run a command that trains, check its outcome, write the report, and return the exit code of the process.

    Args:
        arguments: the command line.
        train: trains, and returns the exit code. It passes the run or the sweep to the verdict.

    Raises:
        UserError: an assertion or the budget is not valid, or the report cannot be written; raised before `train`.
        RunnerError: raised by `train`, after the report was written.
    """
    verdict = Verdict(arguments)
    try:
        verdict.read(arguments)
        with within(verdict.budget):
            code = train(verdict)
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except Interrupted as end:
        print(f"stopped while the run was starting: {end}", file=sys.stderr, flush=True)
        code = ExitCode.INTERRUPTED
    except Exception as error:
        verdict.conclude(error.exit_code if isinstance(error, RunnerError) else ExitCode.FAILED, error)
        raise
    return verdict.conclude(code)


def parse_budget(text: str) -> Budget:
    """Read `120s`, `2m`, `1h30m`, or `90` (seconds); raises `UsageError`."""
    match = _DURATION.fullmatch(text)
    read = {name: float(number) for name, number in match.groupdict(default="0").items()} if match else {}
    seconds = read["h"] * 3600 + read["m"] * 60 + read["s"] + read["seconds"] if read else 0.0
    if seconds <= 0:
        raise UsageError(Problem("--budget is not valid", got=text, expected="120s, 2m, 1h30m, or seconds: 120"))
    return Budget(f"{text}s" if text[-1].isdigit() else text, seconds)


@dataclass(frozen=True)
class Assertion:
    """A condition and the value that it was checked against."""

    condition: Condition
    judged: JudgedValue

    @property
    def holds(self) -> bool:
        """Whether the value meets the condition."""
        return self.condition.holds(self.judged.value)

    def __str__(self) -> str:
        if self.judged.value is not None:
            got = self.condition.value_text(self.judged.value)
        else:
            got = "its last value is not a number" if self.judged.is_reported else "never reported"
        of = f" of {self.judged.of}" if self.judged.of else ""
        return f"{got}{of}, {'holds' if self.holds else 'does not hold'}"

    def to_case(self) -> Case:
        """Return the assertion as a test of the report."""
        name = f"assert {self.condition}"
        return Case(name, output=str(self)) if self.holds else failure(name, str(self))


class Verdict:
    """The outcome of a command; `conclude` prints it, reports it and returns the exit code.

    Args:
        arguments: the command line. A report is written immediately, so that a killed command also leaves one.

    Raises:
        UserError: the report cannot be written.
    """

    def __init__(self, arguments: Arguments) -> None:
        self.budget: Budget | None = None
        self._conditions: Sequence[Condition] = ()
        self._report = None if (junit := arguments.path("--junit")) is None else junit.absolute()
        self._started_s = time.time()
        self._trained: Trained = TrainedRun(arguments.experiment or "runner", None)
        try:
            self._write_report([Case("run", "error", "the command has not ended: it runs, or was killed")])
        except OSError as error:
            what = f"the report cannot be written: {error.strerror}"
            raise UserError(Problem(what, f"--junit {self._report}")) from error

    def read(self, arguments: Arguments) -> None:
        """Read the assertions and the budget; raises `UsageError`."""
        self._conditions = parse_assertions(arguments.assertions, is_single_run=not arguments.is_multirun)
        budget = arguments.value("--budget")
        self.budget = None if budget is None else parse_budget(budget)

    # -- during the command -----------------------------------------------------------------------------------------

    def judge_run(self, experiment: str | None, run_dir: Path) -> None:
        """Judge the run in this folder."""
        self._trained = TrainedRun(experiment or self._trained.experiment, run_dir)

    def judge_sweep(self, folder: SweepFolder) -> None:
        """Check the assertions on the sweep in this folder; its trials are up to date when it has ended."""
        self._trained = TrainedSweep(folder)

    # -- at its end ------------------------------------------------------------------------------------------------

    def conclude(self, code: int, error: Exception | None = None) -> int:
        """Check the assertions, print them, write the report.

        Args:
            code: exit code of training itself.
            error: the error that ended the command, or None.

        Returns:
            The exit code of the command: `BUDGET` if the budget ended it, `ASSERTION` if it finished and an assertion
            does not hold, else `code`.
        """
        conditions = () if code == ExitCode.MISTAKE else self._conditions
        assertions = [Assertion(condition, self._trained.value_of(condition)) for condition in conditions]
        if code == ExitCode.INTERRUPTED and self._ended_by_budget:
            code = ExitCode.BUDGET
        elif code == ExitCode.FINISHED and not all(assertion.holds for assertion in assertions):
            code = ExitCode.ASSERTION
        self._print(code, assertions)
        try:
            self._write_report([*self._cases(code, error), *(assertion.to_case() for assertion in assertions)])
        except OSError as fault:
            print(f"the report {self._report} cannot be written: {fault}", file=sys.stderr, flush=True)
            return code or ExitCode.FAILED
        return code

    @property
    def _ended_by_budget(self) -> bool:
        return self.budget is not None and self.budget.has_ended_it

    def _print(self, code: int, assertions: Sequence[Assertion]) -> None:
        if code == ExitCode.BUDGET and self._trained.kind == "sweep":  # a run prints it itself
            print(f"{self._early}; the same command continues the sweep")
        for assertion in assertions:
            print(f"assert {assertion.condition}: {assertion}", flush=True)

    @property
    def _early(self) -> str:
        """Reason why a command ended early."""
        return self.budget.reason if self.budget is not None and self._ended_by_budget else "interrupted"

    # -- the report ------------------------------------------------------------------------------------------------

    def _write_report(self, cases: Sequence[Case]) -> None:
        if self._report is not None:
            trained = self._trained
            write_report(self._report, trained.experiment, cases, trained.properties(), self._time_s, self._started_s)

    @property
    def _time_s(self) -> float:
        return time.time() - self._started_s

    def _cases(self, code: int, error: Exception | None) -> Iterator[Case]:
        """Yield the run or the trials of the sweep, or the problems if the configuration is not valid."""
        if isinstance(error, UserError):
            yield from _cases_of_mistakes(error)
            return
        if error is not None:
            yield failure(self._trained.kind, str(error) or type(error).__name__, self._time_s)
        else:
            early = self._early if code in (ExitCode.INTERRUPTED, ExitCode.BUDGET) else None
            yield from self._trained.overall_cases(early, self._time_s)
        yield from self._trained.trial_cases()


def _cases_of_mistakes(error: UserError) -> Iterator[Case]:
    if not isinstance(error, ConfigError):
        yield failure("command line", str(error))
        return
    for problem in error.problems:
        yield Case(problem.what.partition("\n")[0], "failure", problem.what, problem.render_alone())
