"""The page of a profile: the table, the hottest functions, and a flame graph for each kind of process."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from runner.pages.page import Block, Cell, Drawing, Fact, Page, Section, Table, Text
from runner.profiling.categories import WAITING
from runner.profiling.flame_graph import flame_graph, legend
from runner.profiling.profile import Profile
from runner.profiling.profile_table import seconds_of, two_lines
from runner.profiling.stacks import Stack

_READING = (
    "A bar is a function, below the one that called it; its width is its time, and pointing at it tells how much. The "
    "colour says what the time counts as in the table. Processes of a kind are in one graph, added up."
)


def profile_page(profile: Profile, title: str, run_dir: Path) -> Page:
    """Return the page of a profile.

    Args:
        profile: of a run.
        title: the name of its experiment.
        run_dir: where it is.
    """
    return Page(
        kind="profile",
        title=title,
        subtitle=str(run_dir),
        status={},
        facts=_facts(profile),
        sections=[
            Section("Time by category", list(_table(profile))),
            Section("Hottest functions", list(_hottest(profile))),
            Section("Flame graphs", list(_graphs(profile))),
            Section("What counts as what", [_meanings(profile)]),
        ],
        headline=(),
    )


def _facts(profile: Profile) -> list[Fact]:
    an_iteration_ms = profile.wall_s / profile.num_iterations * 1e3
    num_processes = len(profile.processes)
    return [
        Fact("An iteration", f"{an_iteration_ms:,.1f} ms", f"{profile.num_iterations} sampled"),
        Fact("Warm-up", str(profile.num_warmup), "iterations before, which are left out"),
        Fact("Processes", str(num_processes), "each sampled in its main thread"),
        Fact("Samples", f"{profile.num_samples:,}", "in all processes"),
    ]


def _table(profile: Profile) -> Iterator[Block]:
    columns = ["process", *("\n".join(two_lines(category.title)) for category in profile.categories), "all"]
    rows = []
    for process in profile.processes:
        seconds = seconds_of(process, profile.categories)
        cells = [_cell(one, seconds[-1], profile.num_iterations) for one in seconds]
        rows.append([_process_cell(process.name), *cells])
    yield Table(columns, rows)
    yield Text("Milliseconds an iteration, and below them the share of the process's time.")


def _cell(seconds: float, whole_s: float, num_iterations: int) -> Cell:
    return Cell(f"{seconds / num_iterations * 1e3:,.1f}\n{seconds / whole_s:.1%}", seconds)


def _process_cell(name: str) -> Cell:
    return Cell(name.replace(" ", "\N{NO-BREAK SPACE}"), name)


def _meanings(profile: Profile) -> Table:
    rows = [[Cell(category.title), Cell(category.meaning)] for category in profile.categories]
    return Table(("category", "time of"), rows, is_sortable=False)


def _hottest(profile: Profile) -> Iterator[Block]:
    columns = ("function", "own ms\nan iteration", "of the\nprocess", "process", "line that took most")
    yield Table(
        columns,
        [
            [
                Cell(hot.frame.function, hot.frame.function),
                Cell(f"{hot.seconds / profile.num_iterations * 1e3:,.1f}", hot.seconds),
                Cell(f"{hot.share:.1%}", hot.share),
                _process_cell(hot.process),
                Cell(hot.place, hot.place),
            ]
            for hot in profile.hottest()
        ],
    )
    yield Text("Without what they call; what waits is left out. A torch operator counts for the line that calls it.")


def _graphs(profile: Profile) -> Iterator[Block]:
    yield Text(_READING)
    yield Drawing(legend({category.title: category.colour for category in profile.categories}))
    counts = Counter(process.role for process in profile.processes)
    for role, count in counts.items():
        stacks = defaultdict[Stack, float](float)
        for process in profile.processes:
            if process.role == role:
                for stack, seconds in process.samples.by_stack().items():
                    stacks[stack] += seconds
        name = role if count == 1 else f"{count} {role}s"
        waited = sum(process.seconds.get(WAITING, 0.0) for process in profile.processes if process.role == role)
        whole = sum(stacks.values())
        caption = f"{whole / profile.num_iterations * 1e3:,.1f} ms an iteration, {waited / whole:.1%} of it waiting"
        yield Drawing(flame_graph(stacks, profile.num_iterations, f"flame graph of {name}"), caption, name)
