"""JUnit XML: the report of a test run that GitLab, Jenkins and GitHub's report actions read."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from runner.tracking.result_file import write_atomically

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
        path: of the file; its folder is made.
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
