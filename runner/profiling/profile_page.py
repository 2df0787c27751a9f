"""Show a profile on the terminal and as a page: a table, the hottest functions, and flame graphs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from markupsafe import Markup, escape

from runner.pages.page import Block, Cell, Drawing, Fact, Page, Section, Table, Text
from runner.profiling.profile import WAITING, Category, HotFunction, ProcessProfile, Profile, category_of
from runner.profiling.sampler import Frame, Stack

_GAP = "  "
_NARROWEST_COLUMN = 7  # fits 1,234.5


def profile_lines(profile: Profile) -> Iterator[str]:
    """Yield the table of processes and categories, and the hottest functions."""
    yield from _category_lines(profile)
    yield ""
    yield from _hot_lines(profile.hottest(), profile.num_iterations)


def _category_lines(profile: Profile) -> Iterator[str]:
    heads = [*(two_lines(category.title) for category in profile.categories), ("", "all")]
    widths = [max(_NARROWEST_COLUMN, *map(len, head)) for head in heads]
    name_width = max(len("ms per iteration"), *(len(process.name) for process in profile.processes))
    for number, label in enumerate(("", "ms per iteration")):
        yield _joined(label, name_width, [head[number] for head in heads], widths)
    for process in profile.processes:
        seconds = seconds_of(process, profile.categories)
        in_ms = [f"{one / profile.num_iterations * 1e3:,.1f}" for one in seconds]
        yield _joined(process.name, name_width, in_ms, widths)
        yield _joined("", name_width, [f"{one / seconds[-1]:.1%}" for one in seconds], widths)


def seconds_of(process: ProcessProfile, categories: Sequence[Category]) -> list[float]:
    """Return the seconds of a process by category, followed by their sum."""
    return [*(process.seconds.get(category, 0.0) for category in categories), process.samples.wall_s]


def two_lines(title: str) -> tuple[str, str]:
    """Split off the last word of a title."""
    first, _, last = title.rpartition(" ")
    return first, last


def _joined(label: str, width: int, cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (f"{cell:>{cell_width}}" for cell, cell_width in zip(cells, widths, strict=True))
    return _GAP.join((f"{label:<{width}}", *padded)).rstrip()


def _hot_lines(hottest: Sequence[HotFunction], num_iterations: int) -> Iterator[str]:
    yield "hottest functions, own ms per iteration without calls"
    width = max((len(hot.process) for hot in hottest), default=0)
    for hot in hottest:
        own_ms = hot.seconds / num_iterations * 1e3
        yield f"  {own_ms:>9,.1f}  {hot.share:>6.1%}  {hot.process:<{width}}  {hot.frame.function}  {hot.place}"


_ROW, _TEXT = 18, 12.5  # pixels: height of a frame, and position of its text
_NARROWEST, _NARROWEST_TEXT = 0.0008, 0.012  # fractions of the width below which a frame, or its text, is left out
_MIXED = "#eceff3"  # frames whose callees have several categories

FRAME = Markup(
    '<svg x="{x:.3f}%" y="{y}" width="{width:.3f}%" height="{height}"><title>{title}</title>'
    '<rect width="100%" height="100%" rx="2" fill="{fill}"/>{text}</svg>\n'
)
LABEL = Markup('<text x="4" y="{y}">{text}</text>')
GRAPH = Markup('<svg class="flames" role="img" aria-label="{label}" width="100%" height="{height}">\n{frames}</svg>')


@dataclass
class _Node:
    """A function with its callees."""

    seconds: float = 0.0
    categories: dict[Category, float] = field(default_factory=dict)
    callees: dict[Frame, _Node] = field(default_factory=dict)

    def add(self, category: Category, seconds: float) -> None:
        self.seconds += seconds
        self.categories[category] = self.categories.get(category, 0.0) + seconds


def flame_graph(stacks: Mapping[Stack, float], num_iterations: int, label: str) -> Markup:
    """Draw stacks with the outermost function at the top, and callees below it in alphabetical order.

    Args:
        stacks: seconds by stack.
        num_iterations: number of sampled iterations; times are shown per iteration.
        label: description for screen readers.
    """
    root = _Node()
    for stack, seconds in stacks.items():
        category, node = category_of(stack), root
        node.add(category, seconds)
        for frame in stack:
            node = node.callees.setdefault(frame, _Node())
            node.add(category, seconds)
    if not root.seconds:
        return Markup("")
    placed = list(_placed(root))
    height = _ROW * max((1 + depth for *_, depth in placed), default=0)
    frames = Markup("").join(_drawn(*one, root.seconds, num_iterations) for one in placed)
    return GRAPH.format(label=label, height=height, frames=frames)


# A function, its node, the share of the width at which it starts, and its depth.
_Placed = tuple[Frame, _Node, float, int]


def _placed(root: _Node) -> Iterator[_Placed]:
    """Yield the visible functions below a root, each before its callees; stacks may be deeper than Python's own."""
    waiting = [*_visible(root, 0.0, 0, root.seconds)][::-1]
    while waiting:
        yield (placed := waiting.pop())
        _, node, start, depth = placed
        waiting += [*_visible(node, start, depth + 1, root.seconds)][::-1]


def _visible(node: _Node, start: float, depth: int, total: float) -> Iterator[_Placed]:
    for frame, callee in sorted(node.callees.items()):
        share = callee.seconds / total
        if share >= _NARROWEST:
            yield frame, callee, start, depth
        start += share


def _drawn(frame: Frame, node: _Node, start: float, depth: int, total: float, num_iterations: int) -> Markup:
    share = node.seconds / total
    category, of_category = max(node.categories.items(), key=lambda pair: pair[1])
    is_mixed = of_category < 0.98 * node.seconds
    kind = "" if is_mixed else f" · {category.title}"
    title = f"{frame} · {node.seconds / num_iterations * 1e3:,.2f} ms per iteration, {share:.1%}{kind}"
    return FRAME.format(
        x=start * 100,
        y=depth * _ROW,
        width=share * 100,
        height=_ROW - 1,
        title=title,
        fill=_MIXED if is_mixed else category.colour,
        text=LABEL.format(y=_TEXT, text=_short(frame)) if share >= _NARROWEST_TEXT else Markup(""),
    )


def _short(frame: Frame) -> Markup:
    """Return the function's name without enclosing functions."""
    return escape(frame.function.replace(".<locals>", "").removeprefix("<module>") or frame.file)


def legend(categories: Mapping[str, str]) -> Markup:
    """Return the legend of colours, given title -> colour."""
    entry = Markup('<span><i style="background:{}"></i>{}</span>')
    entries = [entry.format(colour, title) for title, colour in {**categories, "several": _MIXED}.items()]
    return Markup('<p class="legend">{}</p>').format(Markup("").join(entries))


_READING = (
    "A bar is a function, drawn below its caller. Its width is its time, which is shown when you point at it. Colours "
    "are the categories of the table. Processes with the same role are summed in one graph."
)


def profile_page(profile: Profile, title: str, run_dir: Path) -> Page:
    """Return the page of a profile.

    Args:
        profile: profile of a run.
        title: name of its experiment.
        run_dir: its run dir.
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
            Section("Categories", [_meanings(profile)]),
        ],
        headline=(),
    )


def _facts(profile: Profile) -> list[Fact]:
    iteration_ms = profile.wall_s / profile.num_iterations * 1e3
    num_processes = len(profile.processes)
    return [
        Fact("Iteration", f"{iteration_ms:,.1f} ms", f"{profile.num_iterations} sampled"),
        Fact("Warm-up", str(profile.num_warmup), "iterations before, not sampled"),
        Fact("Processes", str(num_processes), "main thread of each"),
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
    yield Text("Milliseconds per iteration, and below them the share of the process's time.")


def _cell(seconds: float, total_s: float, num_iterations: int) -> Cell:
    return Cell(f"{seconds / num_iterations * 1e3:,.1f}\n{seconds / total_s:.1%}", seconds)


def _process_cell(name: str) -> Cell:
    return Cell(name.replace(" ", "\N{NO-BREAK SPACE}"), name)


def _meanings(profile: Profile) -> Table:
    rows = [[Cell(category.title), Cell(category.meaning)] for category in profile.categories]
    return Table(("category", "work"), rows, is_sortable=False)


def _hottest(profile: Profile) -> Iterator[Block]:
    columns = ("function", "own ms per\niteration", "of the\nprocess", "process", "line with most time")
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
    yield Text("Own time, without calls and without waiting. A torch operator counts for the line that calls it.")


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
        total = sum(stacks.values())
        caption = f"{total / profile.num_iterations * 1e3:,.1f} ms per iteration, {waited / total:.1%} of it waiting"
        yield Drawing(flame_graph(stacks, profile.num_iterations, f"flame graph of {name}"), caption, name)
