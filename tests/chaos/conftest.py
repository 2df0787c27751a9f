"""Fault injection: what every scenario shares, and the table of outcomes.

`make chaos` runs all scenarios, one after the other; scenarios without the marker `chaos` are part of `make slow` too.
CHAOS_SEED sets the seed of every random moment (it is printed, and a new one is drawn where it is not set);
CHAOS_TABLE names a Markdown file whose section "Fault injection" gets the table of outcomes.
"""

from __future__ import annotations

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
    function, _, parameters = request.node.name.removeprefix("test_").partition("[")
    made = Scenario(function.replace("_", " ") + (f": {parameters[:-1]}" if parameters else ""))
    request.node.stash[_SCENARIO] = made
    return made


_SCENARIO = pytest.StashKey[Scenario]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Put the row of a scenario into its report, which also travels between processes of pytest-xdist."""
    report = yield
    if call.when == "call" and _SCENARIO in item.stash:
        report.user_properties.append((_ROW, item.stash[_SCENARIO].row(report).to_plain()))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table of outcomes, and write it where CHAOS_TABLE says."""
    reports = [report for kind in ("passed", "failed", "skipped") for report in terminalreporter.stats.get(kind, ())]
    rows = [Row.from_plain(value) for report in reports for name, value in report.user_properties if name == _ROW]
    if not rows:
        return
    rows.sort(key=lambda row: row.scenario)
    terminalreporter.section("fault injection")
    terminalreporter.write_line(f"CHAOS_SEED={os.environ.get('CHAOS_SEED', '')}\n")
    terminalreporter.write_line(table_text(rows))
    if path := os.environ.get("CHAOS_TABLE"):
        write_table(Path(path), rows, os.environ.get("CHAOS_SEED", ""))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts `python ARGUMENTS` in a folder of its own; kills what is left of it after the test."""
    started: list[Command] = []

    def begin(*arguments: str, **more: Any) -> Command:
        started.append(Command(tmp_path, *arguments, **more))
        return started[-1]

    yield begin
    for command in started:
        command.close()
