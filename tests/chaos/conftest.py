"""Fault injection: what every scenario shares, and the table of outcomes.

`make chaos` runs all scenarios, one after the other; scenarios without the marker `chaos` are part of `make slow` too.
CHAOS_SEED sets the seed of every random moment (it is printed, and a new one is drawn where it is not set);
CHAOS_TABLE names a Markdown file whose section "Fault injection" gets the table of outcomes. CHAOS_ROWS names a file
that keeps the rows of scenarios that passed: an interrupted run continues with the others.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.processes import Command
from tests.chaos.table import Row, table_text, write_table

_ROW = "chaos_row"
Start = Callable[..., Command]  # type of the fixture start


def pytest_configure(config: pytest.Config) -> None:
    """Draw a seed before processes of pytest-xdist start, which inherit it."""
    os.environ.setdefault("CHAOS_SEED", str(random.SystemRandom().randrange(1_000_000)))


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Return the random moments of one scenario: the same for one seed and one scenario, whatever else runs."""
    seed = os.environ.setdefault("CHAOS_SEED", str(random.SystemRandom().randrange(1_000_000)))
    print(f"CHAOS_SEED={seed}")
    return random.Random(f"{seed} {request.node.name}")


class Scenario:
    """Its row in the table: what was injected, and what came of it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._injections: list[str] = []
        self._outcome = ""
        self._begun = time.monotonic()

    def inject(self, what: str) -> None:
        """Note a fault."""
        print(f"injected: {what}")
        self._injections.append(what)

    @property
    def num_injections(self) -> int:
        """How many faults were injected."""
        return len(self._injections)

    def ends(self, outcome: str) -> None:
        """Note what came of it."""
        self._outcome = outcome

    def row(self, report: pytest.TestReport) -> Row:
        """Return what the table says; of a skipped scenario the reason."""
        outcome = self._outcome if report.passed else "FAILED"
        if report.skipped and isinstance(report.longrepr, tuple):
            outcome = str(report.longrepr[2])
        return Row(self._name, tuple(self._injections), outcome, time.monotonic() - self._begun)


@pytest.fixture
def scenario(request: pytest.FixtureRequest) -> Scenario:
    """Return the scenario that runs; its row is in the table."""
    made = Scenario(_scenario_name(request.node))
    request.node.stash[_SCENARIO] = made
    return made


def _scenario_name(item: pytest.Item) -> str:
    function, _, parameters = item.name.removeprefix("test_").partition("[")
    return function.replace("_", " ") + (f": {parameters[:-1]}" if parameters else "")


_SCENARIO = pytest.StashKey[Scenario]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Put the row of a scenario into its report, which also travels between processes of pytest-xdist."""
    report = yield
    if call.when == "call" and _SCENARIO in item.stash:
        report.user_properties.append((_ROW, item.stash[_SCENARIO].row(report).to_plain()))
    return report


def _kept_rows() -> dict[str, Row]:
    """Return scenario -> row of the scenarios that passed before."""
    path = os.environ.get("CHAOS_ROWS")
    lines = Path(path).read_text(encoding="utf-8").splitlines() if path and Path(path).is_file() else []
    return {row.scenario: row for row in (Row.from_plain(json.loads(line)) for line in lines)}


def _rows_of(report: pytest.TestReport) -> list[Row]:
    return [Row.from_plain(value) for name, value in report.user_properties if name == _ROW]  # type: ignore[arg-type]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the scenarios that passed before."""
    passed = _kept_rows()
    for item in items:
        if _scenario_name(item) in passed:
            item.add_marker(pytest.mark.skip("passed before"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the row of a scenario that passed."""
    if (path := os.environ.get("CHAOS_ROWS")) and report.when == "call" and report.passed:
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row.to_plain()) + "\n" for row in _rows_of(report))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table of outcomes, and write it where CHAOS_TABLE says."""
    reports = [report for kind in ("passed", "failed", "skipped") for report in terminalreporter.stats.get(kind, ())]
    new = {row.scenario: row for report in reports if report.when == "call" for row in _rows_of(report)}
    rows = list((_kept_rows() | new).values())
    if not rows:
        return
    rows.sort(key=lambda row: row.scenario)
    terminalreporter.section("fault injection")
    terminalreporter.write_line(f"CHAOS_SEED={os.environ.get('CHAOS_SEED', '')}\n")
    terminalreporter.write_line(table_text(rows))
    if path := os.environ.get("CHAOS_TABLE"):
        write_table(Path(path), rows, os.environ.get("CHAOS_SEED", ""))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `python ARGUMENTS` in a folder of its own; kills what is left of it after the test."""
    started: list[Command] = []

    def begin(*arguments: str, **more: Any) -> Command:
        started.append(Command(tmp_path, *arguments, **more))
        return started[-1]

    yield begin
    for command in started:
        command.close()
