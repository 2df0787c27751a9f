"""Flame graphs as SVG that stands in a page: no script, tooltips as titles, widths in per cent of the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from runner.profiling.categories import Category, category_of
from runner.profiling.stacks import Frame, Stack

_ROW, _TEXT = 18, 12.5  # pixels: height of a frame, and where in it its text stands
_NARROWEST, _NARROWEST_TEXT = 0.0008, 0.012  # shares of the width below which a frame, or its text, is left out
_MIXED = "#eceff3"  # frames with several categories above them

FRAME = Markup(
    '<svg x="{x:.3f}%" y="{y}" width="{width:.3f}%" height="{height}"><title>{title}</title>'
    '<rect width="100%" height="100%" rx="2" fill="{fill}"/>{text}</svg>\n'
)
LABEL = Markup('<text x="4" y="{y}">{text}</text>')
GRAPH = Markup('<svg class="flames" role="img" aria-label="{label}" width="100%" height="{height}">\n{frames}</svg>')


@dataclass
class _Node:
    """A function below the ones that have called it."""

    seconds: float = 0.0
    categories: dict[Category, float] = field(default_factory=dict)
    callees: dict[Frame, _Node] = field(default_factory=dict)

    def add(self, category: Category, seconds: float) -> None:
        self.seconds += seconds
        self.categories[category] = self.categories.get(category, 0.0) + seconds


def flame_graph(stacks: Mapping[Stack, float], num_iterations: int, label: str) -> Markup:
    """Draw stacks with the outermost function at the top; what a function calls is below it, in alphabetical order.

    Args:
        stacks: seconds by stack.
        num_iterations: that they are of; times are told an iteration.
        label: what they are of, for readers who do not see.
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
    depth = _depth(root, root.seconds)
    frames = Markup("").join(_frames(root, 0.0, 0, root.seconds, num_iterations))
    return GRAPH.format(label=label, height=depth * _ROW, frames=frames)


def _is_seen(node: _Node, whole: float) -> bool:
    return node.seconds / whole >= _NARROWEST


def _depth(node: _Node, whole: float) -> int:
    return max((1 + _depth(callee, whole) for callee in node.callees.values() if _is_seen(callee, whole)), default=0)


def _frames(node: _Node, start: float, depth: int, whole: float, num_iterations: int) -> Iterator[Markup]:
    for frame, callee in sorted(node.callees.items()):
        share = callee.seconds / whole
        if _is_seen(callee, whole):
            category, of_category = max(callee.categories.items(), key=lambda pair: pair[1])
            is_mixed = of_category < 0.98 * callee.seconds
            kind = "" if is_mixed else f" · {category.title}"
            title = f"{frame} · {callee.seconds / num_iterations * 1e3:,.2f} ms an iteration, {share:.1%}{kind}"
            text = LABEL.format(y=_TEXT, text=_short(frame)) if share >= _NARROWEST_TEXT else Markup("")
            yield FRAME.format(
                x=start * 100,
                y=depth * _ROW,
                width=share * 100,
                height=_ROW - 1,
                title=title,
                fill=_MIXED if is_mixed else category.colour,
                text=text,
            )
            yield from _frames(callee, start, depth + 1, whole, num_iterations)
        start += share


def _short(frame: Frame) -> Markup:
    """Return the name that tells most in little room: without the function that it is defined in."""
    return escape(frame.function.replace(".<locals>", "").removeprefix("<module>") or frame.file)


def legend(categories: Mapping[str, str]) -> Markup:
    """Return what the colours mean; title -> colour."""
    entry = Markup('<span><i style="background:{}"></i>{}</span>')
    entries = [entry.format(colour, title) for title, colour in {**categories, "several": _MIXED}.items()]
    return Markup('<p class="legend">{}</p>').format(Markup("").join(entries))
