"""A profile as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runner.profiling.categories import Category
from runner.profiling.profile import HotFunction, ProcessProfile, Profile

_GAP = "  "
_NARROWEST = 7  # room for 1,234.5


def profile_lines(profile: Profile) -> Iterator[str]:
    """Yield the table of processes and categories, and the hottest functions."""
    yield from _category_lines(profile)
    yield ""
    yield from _hot_lines(profile.hottest(), profile.num_iterations)


def _category_lines(profile: Profile) -> Iterator[str]:
    heads = [*(two_lines(category.title) for category in profile.categories), ("", "all")]
    widths = [max(_NARROWEST, *map(len, head)) for head in heads]
    name_width = max(len("ms an iteration"), *(len(process.name) for process in profile.processes))
    for number, label in enumerate(("", "ms an iteration")):
        yield _joined(label, name_width, [head[number] for head in heads], widths)
    for process in profile.processes:
        seconds = seconds_of(process, profile.categories)
        in_ms = [f"{one / profile.num_iterations * 1e3:,.1f}" for one in seconds]
        yield _joined(process.name, name_width, in_ms, widths)
        yield _joined("", name_width, [f"{one / seconds[-1]:.1%}" for one in seconds], widths)


def seconds_of(process: ProcessProfile, categories: Sequence[Category]) -> list[float]:
    """Return the seconds of a process by category, and last their sum."""
    return [*(process.seconds.get(category, 0.0) for category in categories), process.samples.wall_s]


def two_lines(title: str) -> tuple[str, str]:
    """Return a title in two parts of which the second is the last word."""
    first, _, last = title.rpartition(" ")
    return first, last


def _joined(label: str, width: int, cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (f"{cell:>{cell_width}}" for cell, cell_width in zip(cells, widths, strict=True))
    return _GAP.join((f"{label:<{width}}", *padded)).rstrip()


def _hot_lines(hottest: Sequence[HotFunction], num_iterations: int) -> Iterator[str]:
    yield "hottest functions, their own ms an iteration without what they call"
    width = max((len(hot.process) for hot in hottest), default=0)
    for hot in hottest:
        own_ms = hot.seconds / num_iterations * 1e3
        yield f"  {own_ms:>9,.1f}  {hot.share:>6.1%}  {hot.process:<{width}}  {hot.frame.function}  {hot.place}"
