"""The outcome of a command that trains, as a CI job sees it: one run, or a sweep with its trials; also as JUnit XML."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from xml.etree import ElementTree

from runner.cli.conditions import Condition
from runner.durable_files import write_atomically
from runner.tracking.headline import ENV_STEPS, TOTAL_S
from runner.tracking.progress_log import ProgressLog, read_result

if TYPE_CHECKING:
    from runner.sweep.statistics import Ranking, SeedGroup
    from runner.sweep.trials import SweepFolder, Trial


Outcome = Literal["passed", "failure", "error", "skipped"]

# Colours of a terminal, and characters that XML 1.0 forbids.
_NOT_IN_XML = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Case:
    """One test.

    Attributes:
        name: of the test.
        outcome: `failure` is an expectation that is not met, `error` one that could not be judged.
        message: one line about an outcome other than `passed`.
        details: further lines about it.
        output: shown whatever the outcome.
        time_s: seconds that it took.
    """

    name: str
    outcome: Outcome = "passed"
    message: str = ""
    details: str = ""
    output: str = ""
    time_s: float = 0.0


def write_report(
    path: Path, suite: str, cases: Sequence[Case], properties: Mapping[str, object], time_s: float, started_s: float
) -> None:
    """Write one suite.

    Args:
        path: path of the file; its folder is created.
        suite: name of the suite, the class name of its cases too.
        cases: in this order.
        properties: of the suite; None leaves one out.
        time_s: seconds that all tests took.
        started_s: Unix time of the start.

    Raises:
        OSError: the file cannot be written.
    """
    counted = {
        "tests": len(cases),
        "failures": sum(case.outcome == "failure" for case in cases),
        "errors": sum(case.outcome == "error" for case in cases),
        "skipped": sum(case.outcome == "skipped" for case in cases),
    }
    totals = {**{name: str(count) for name, count in counted.items()}, "time": f"{time_s:.3f}"}
    root = ElementTree.Element("testsuites", {"name": _clean(suite), **totals})
    timestamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(started_s))
    element = ElementTree.SubElement(root, "testsuite", {"name": _clean(suite), **totals, "timestamp": timestamp})
    known = {name: value for name, value in properties.items() if value is not None}
    if known:
        listed = ElementTree.SubElement(element, "properties")
        for name, value in known.items():
            ElementTree.SubElement(listed, "property", {"name": name, "value": _clean(str(value))})
    for case in cases:
        _add_case(element, suite, case)
    ElementTree.indent(root)
    write_atomically(path, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")


def _add_case(suite: ElementTree.Element, suite_name: str, case: Case) -> None:
    named = {"name": _clean(case.name), "classname": _clean(suite_name), "time": f"{case.time_s:.3f}"}
    element = ElementTree.SubElement(suite, "testcase", named)
    if case.outcome != "passed":
        told = ElementTree.SubElement(element, case.outcome, {"message": _clean(case.message)})
        told.text = _clean(case.details or case.message)
    if case.output:
        ElementTree.SubElement(element, "system-out").text = _clean(case.output)


def _clean(text: str) -> str:
    return _NOT_IN_XML.sub("", text)


@dataclass(frozen=True)
class JudgedValue:
    """The value that a condition is checked against.

    Attributes:
        value: None if the metric is not a number.
        is_reported: whether the metric was reported at all.
        of: the trial or the combination that was checked; empty for a single run.
    """

    value: float | None
    is_reported: bool
    of: str = ""


@dataclass(frozen=True)
class TrainedRun:
    """A single run; its files are read on demand. `run_dir` is None before the run begins."""

    experiment: str
    run_dir: Path | None
    kind = "run"

    def value_of(self, condition: Condition) -> JudgedValue:
        """Return the value that this condition is checked against."""
        return _last_value(self.run_dir, condition.metric)

    def overall_cases(self, early: str | None, time_s: float) -> Iterator[Case]:
        """Yield the test for the entire run.

        Args:
            early: reason for an early end, or None.
            time_s: seconds that the command took.
        """
        result = self._result()
        reason = str(result.get("stop_reason") or "")
        if early is None:
            yield Case(self.kind, output=reason, time_s=time_s)
        else:
            is_told = result.get("status") == "interrupted"
            yield Case(self.kind, "error", reason if is_told else early, time_s=time_s)

    def trial_cases(self) -> Iterator[Case]:
        """Yield a test for each trial; a single run does not have any."""
        return iter(())

    def properties(self) -> Mapping[str, object]:
        """Return facts for a report."""
        return {"run_dir": self.run_dir, **_totals([self._result()]), **_mlflow_run(self.run_dir)}

    def _result(self) -> dict[str, Any]:
        return _read(self.run_dir, "result.json")


@dataclass(frozen=True)
class TrainedSweep:
    """A sweep; conditions are about its best trial by the first objective, or about its best combination over seeds."""

    folder: SweepFolder
    kind = "sweep"

    @property
    def experiment(self) -> str:
        return self.folder.experiment

    def value_of(self, condition: Condition) -> JudgedValue:
        if condition.is_over_seeds:
            groups = self._ranking.groups
            return self._over_seeds(groups[0], condition.metric) if groups else JudgedValue(None, False)
        best = self._ranking.best
        if best is None:
            return JudgedValue(None, False)
        last = _last_value(self.folder.run_dir(best), condition.metric)
        return replace(last, of=f"the best trial, {best.number} of {len(self.folder.trials)}")

    def _over_seeds(self, group: SeedGroup, metric: str) -> JudgedValue:
        from runner.sweep.statistics import estimate

        last = [_last_value(self.folder.run_dir(trial), metric) for trial in group.trials]
        reached = estimate([math.nan if one.value is None else one.value for one in last])
        num_seeds = f"{reached.num} of {len(last)}" if reached.num < len(last) else f"{reached.num}"
        combination = f" with {' '.join(group.overrides)}" if group.overrides else ""
        of = f"the best combination{combination}, {num_seeds} seed{'s' if len(last) > 1 else ''}"
        return JudgedValue(reached.iqm if reached.num else None, any(one.is_reported for one in last), of)

    @property
    def _ranking(self) -> Ranking:
        from runner.sweep.statistics import rank_folder

        return rank_folder(self.folder)

    def overall_cases(self, early: str | None, time_s: float) -> Iterator[Case]:
        if early is not None:
            yield Case(self.kind, "error", early, time_s=time_s)

    def trial_cases(self) -> Iterator[Case]:
        return map(_case_of, self.folder.trials)

    def properties(self) -> Mapping[str, object]:
        path, best = self.folder.path, self._ranking.best
        totals = _totals([trial.result for trial in self.folder.trials])
        best_run_dir = None if best is None else self.folder.run_dir(best)
        return {"sweep_dir": path, "best_run_dir": best_run_dir, **totals, **_mlflow_run(path)}


Trained = TrainedRun | TrainedSweep


def _last_value(run_dir: Path | None, metric: str) -> JudgedValue:
    """Read the last line of progress.jsonl that has the metric: not every iteration has an evaluation."""
    lines = [] if run_dir is None else ProgressLog(run_dir / "progress.jsonl").read()
    line = next((line for line in reversed(lines) if metric in line), None)
    return JudgedValue(None if line is None else line[metric], line is not None)


def _case_of(trial: Trial) -> Case:
    name = " ".join([f"trial {trial.number}", *trial.overrides])
    seconds = float(trial.result.get(TOTAL_S) or 0.0)
    if trial.status == "failed":
        return failure(name, trial.reason, seconds)
    if trial.is_over:
        return Case(name, output=f"{trial.status}: {trial.reason}", time_s=seconds)
    has_begun = bool(trial.result)
    return Case(name, "error" if has_begun else "skipped", trial.reason or trial.status, time_s=seconds)


def failure(name: str, reason: str, time_s: float = 0.0) -> Case:
    """Return a failed test, with the first line of the reason as its message."""
    return Case(name, "failure", (reason.splitlines() or [""])[0], reason, time_s=time_s)


def _totals(results: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    steps = [result[ENV_STEPS] for result in results if result.get(ENV_STEPS) is not None]
    seconds = [result[TOTAL_S] for result in results if result.get(TOTAL_S) is not None]
    return {
        "env_steps": sum(steps) if steps else None,
        "training_time_s": round(sum(seconds), 3) if seconds else None,
    }


def _mlflow_run(folder: Path | None) -> dict[str, object]:
    return {"mlflow_run_id": _read(folder, "mlflow_run.json").get("run_id")}


def _read(folder: Path | None, name: str) -> dict[str, Any]:
    return {} if folder is None else read_result(folder / name)
