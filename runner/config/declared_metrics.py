"""Metrics that connectors, callbacks and operators declare in their class attribute `reports`.

Declarations are read from source files, so that a check of metric names imports none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.config.errors import Problem
from runner.config.reductions import find_reduction_fault
from runner.config.source_definitions import MAX_DEPTH, Definition, read_class_attribute, resolve
from runner.config.source_modules import MissingNameError, UnknowableError

# Beside percentiles.
REDUCTIONS = ("mean", "sum", "min", "max", "median", "last")
REPORTS_FORM = 'reports = {"clipped_fraction": ("mean", "share of the values that were clipped")}'
_CONNECTOR = "runner.pipelines.connector.Connector"

# Metric -> its reduction over the calls, runners and learners of an iteration, and its meaning.
Reports = Mapping[str, tuple[str, str]]


def meaning_of(reports: Reports, name: str) -> str:
    """Return the meaning of a metric, with its reduction."""
    reduction, meaning = reports[name]
    return f"{meaning} ({reduction} over the iteration)"


def find_report_fault(reports: Any) -> Problem | None:
    """Return what is wrong with the value of an attribute `reports`; None if nothing is."""
    if not isinstance(reports, Mapping):
        return Problem("reports is not a dict of name: (reduction, meaning)", None, repr(reports), REPORTS_FORM)
    for name, report in reports.items():
        if not (isinstance(name, str) and name.isidentifier()):
            return Problem("a name in reports is no identifier", None, repr(name), REPORTS_FORM)
        if not (isinstance(report, tuple) and len(report) == 2 and all(isinstance(part, str) for part in report)):
            what = f"reports[{name!r}] is not a pair of reduction and meaning"
            return Problem(what, None, repr(report), REPORTS_FORM)
        fault = find_reduction_fault(f"reports[{name!r}] names no reduction", report[0], REDUCTIONS)
        if fault is not None:
            return fault
    return None


def reports_of_edits(edits: Sequence[Any]) -> dict[str, str]:
    """Return metric -> meaning for the connectors that a list of edits leaves in a pipeline, read from their source.

    Raises:
        UnknowableError: the source of a connector does not tell.
    """
    placed: list[tuple[str, dict[str, Any]]] = []  # class name, block
    for edit in edits:
        if not isinstance(edit, Mapping):
            continue
        removed = edit.get("remove", edit.get("replace"))
        index = next((index for index, (name, _) in enumerate(placed) if name == removed), None)
        if index is not None:
            del placed[index]
        for key in ("prepend", "append", "piece"):
            placed += [(str(block["_target_"]).rpartition(".")[2], block) for block in _blocks(edit.get(key))]
    reports: dict[str, str] = {}
    for _, block in placed:
        declared = declared_reports(str(block["_target_"]), _CONNECTOR)
        reports |= {name: meaning_of(declared, name) for name in declared}
    return reports


def _blocks(block: Any) -> Iterator[dict[str, Any]]:
    """Yield the block of a connector, or the blocks of the connectors of a nested pipeline too."""
    if isinstance(block, dict) and "_target_" in block:
        yield block
        connectors = block.get("pieces")
        for inner in connectors if isinstance(connectors, list) else ():  # another check tells of what is no list
            yield from _blocks(inner)


def declared_reports(path: str, base: str) -> Reports:
    """Return the attribute `reports` of the class at a dotted path; {} for a path that leads nowhere.

    Args:
        path: of a subclass of `base`.
        base: dotted path of the definition of the class that has the attribute first.

    Raises:
        UnknowableError: the source does not tell.
    """
    try:
        found = resolve(path, MAX_DEPTH)
    except MissingNameError:
        return {}
    if not isinstance(found, Definition):
        return {}
    reports = read_class_attribute(found, "reports", base)
    if find_report_fault(reports) is not None:
        raise UnknowableError
    return reports  # type: ignore[no-any-return]
