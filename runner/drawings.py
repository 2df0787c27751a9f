"""Draws self-contained SVG: boxes with arrows, and small curves.

Text uses a fixed-width font, so that its width is known without measuring. No element has an `id`, because a page may
contain several drawings.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

_FONT = "ui-monospace, 'SF Mono', 'Cascadia Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_FONT_SIZE, _CHARACTER = 12, 7.3  # pixels
_ROW, _PADDING, _GAP, _MARGIN = 17, 10, 34, 14
_WIDEST_TEXT = 52  # characters
_TEXT, _QUIET, _LINE, _ARROW = "#1c232b", "#5d6875", "#c3ccd6", "#3b7dc4"
_BOX, _END, _FRAME = "#f6f9fc", "#e0ecf9", "#ffffff"


@dataclass(frozen=True)
class Line:
    """A line below the title of a box; long lines are wrapped.

    Attributes:
        label: text in front, in a quiet colour.
        text: the text.
        is_quiet: whether the text is also drawn in a quiet colour, for default values.
    """

    label: str
    text: str
    is_quiet: bool = False


@dataclass(frozen=True)
class Box:
    """A step of a flow.

    Attributes:
        title: name of the step.
        lines: facts about the step.
        flows: flows inside the step, drawn next to each other.
        is_end: whether the box is an input or output of the flow instead of a step.
    """

    title: str
    lines: Sequence[Line] = ()
    flows: Sequence[BoxStack] = ()
    is_end: bool = False


@dataclass(frozen=True)
class BoxStack:
    """Boxes in a vertical stack.

    Attributes:
        boxes: the boxes, from top to bottom.
        gives: output of each box, shown next to the arrow below it; None, without an arrow, for the last box.
        title: title above the boxes.
    """

    boxes: Sequence[Box]
    gives: Sequence[str | None]
    title: str = ""


def draw(flow: BoxStack, description: str) -> str:
    """Return a flow as SVG.

    Args:
        flow: boxes to draw.
        description: text for screen readers.
    """
    width, height = _flow_size(flow)
    width, height = width + 2 * _MARGIN, height + 2 * _MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" style="max-width:100%;height:auto" role="img" font-family="{_FONT}" '
        f'font-size="{_FONT_SIZE}"><title>{escape(description)}</title>'
    )
    ground = _rectangle(0.5, 0.5, width - 1, height - 1, "#ffffff", "#e1e5ea", 10)
    return "".join([head, ground, *_draw_flow(flow, _MARGIN, _MARGIN, width - 2 * _MARGIN), "</svg>"])


# -- sizes ------------------------------------------------------------------------------------------------------------


def _rows(box: Box) -> list[Line]:
    """Return the wrapped lines; continuation lines are indented by the width of a label."""
    rows = []
    for line in box.lines:
        first, *others = textwrap.wrap(line.text, _WIDEST_TEXT, break_on_hyphens=False) or [""]
        rows.append(Line(line.label, first, line.is_quiet))
        rows += [Line(" " * len(line.label), text, line.is_quiet) for text in others]
    return rows


def _text_width(text: str) -> float:
    return len(text) * _CHARACTER


def _box_size(box: Box) -> tuple[float, float]:
    rows = _rows(box)
    width = max([_text_width(box.title), *(_text_width(f"{row.label} {row.text}") for row in rows)])
    height = float(_ROW * (1 + len(rows)))
    if box.flows:
        sizes = [_flow_size(flow) for flow in box.flows]
        width = max(width, sum(size[0] for size in sizes) + _PADDING * 3 * len(sizes) - _PADDING)
        height += max(size[1] for size in sizes) + 3 * _PADDING
    return width + 2 * _PADDING, height + 2 * _PADDING - 4


def _flow_size(flow: BoxStack) -> tuple[float, float]:
    sizes = [_box_size(box) for box in flow.boxes]
    labels = [2 * _text_width(text or "") + 40 for text in flow.gives]  # the arrows are in the middle
    width = max([size[0] for size in sizes] + labels + [_text_width(flow.title)])
    num_arrows = sum(text is not None for text in flow.gives)
    return width, sum(size[1] for size in sizes) + _GAP * num_arrows + (_ROW + 4 if flow.title else 0)


# -- drawing ----------------------------------------------------------------------------------------------------------


def _draw_flow(flow: BoxStack, x: float, y: float, width: float) -> Iterator[str]:
    if flow.title:
        yield _text(x, y + 12, flow.title, _QUIET)
        y += _ROW + 4
    middle = x + width / 2
    for box, gives in zip(flow.boxes, flow.gives, strict=True):
        box_width, height = _box_size(box)
        yield from _draw_box(box, middle - box_width / 2, y, box_width, height)
        y += height
        if gives is not None:
            yield from _draw_arrow(middle, y, gives)
            y += _GAP


def _draw_box(box: Box, x: float, y: float, width: float, height: float) -> Iterator[str]:
    yield _rectangle(x, y, width, height, _END if box.is_end else _BOX, _LINE, 14 if box.is_end else 7)
    y += _PADDING + 10
    yield _text(x + _PADDING, y, box.title, _TEXT, is_bold=True)
    for row in _rows(box):
        y += _ROW
        label = f"{row.label} "
        yield _text(x + _PADDING, y, label, _QUIET)
        yield _text(x + _PADDING + _text_width(label), y, row.text, _QUIET if row.is_quiet else _TEXT)
    y, x = y + _PADDING, x + _PADDING
    for flow in box.flows:
        flow_width, _ = _flow_size(flow)
        inner_height = max(_flow_size(one)[1] for one in box.flows)
        yield _rectangle(x, y, flow_width + 2 * _PADDING, inner_height + 2 * _PADDING, _FRAME, _LINE, 6, is_dashed=True)
        yield from _draw_flow(flow, x + _PADDING, y + _PADDING, flow_width)
        x += flow_width + 3 * _PADDING


def _draw_arrow(x: float, y: float, label: str) -> Iterator[str]:
    end = y + _GAP - 3
    yield f'<path d="M{x:.1f} {y + 2:.1f}V{end - 5:.1f}" stroke="{_ARROW}" stroke-width="1.6" fill="none"/>'
    yield f'<path d="M{x - 4.5:.1f} {end - 7:.1f}L{x:.1f} {end:.1f}L{x + 4.5:.1f} {end - 7:.1f}Z" fill="{_ARROW}"/>'
    yield _text(x + 12, y + 20, label, _ARROW)


def _rectangle(
    x: float, y: float, width: float, height: float, fill: str, line: str, radius: float, is_dashed: bool = False
) -> str:
    dashes = ' stroke-dasharray="4 3"' if is_dashed else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius}" fill="{fill}" '
        f'stroke="{line}"{dashes}/>'
    )


def _text(x: float, y: float, text: str, colour: str, is_bold: bool = False) -> str:
    if not text.strip():
        return ""
    weight = ' font-weight="700"' if is_bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}"{weight} xml:space="preserve">{escape(text)}</text>'


_WIDTH, _HEIGHT = 560, 200  # pixels
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 12, 34
_CURVE_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_GRID, _CURVE, _BOUND = "#e6e9ed", "#3b7dc4", "#d64550"

Points = Sequence[tuple[float, float]]


def draw_curve(points: Points, x_title: str, y_title: str, bound: float | None = None) -> str:
    """Return a curve as SVG.

    Args:
        points: x, which never decreases, and y; finite.
        x_title: title below the axis.
        y_title: text for screen readers.
        bound: target value of y, drawn as a dashed line, or None.
    """
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-family="{_CURVE_FONT}" font-size="11"><title>{escape(y_title)}</title>'
    )
    return "".join([head, *_draw(points, x_title, bound), "</svg>"])


def _draw(points: Points, x_title: str, bound: float | None) -> Iterator[str]:
    xs, ys = [x for x, _ in points] or [0.0], [y for _, y in points] or [0.0]
    shown = ys if bound is None else [*ys, bound]
    x_low, x_high, y_low, y_high = xs[0], xs[-1], min(shown), max(shown)
    x_scale = (_WIDTH - _LEFT - _RIGHT) / ((x_high - x_low) or 1.0)
    y_scale = (_HEIGHT - _TOP - _BOTTOM) / ((y_high - y_low) or 1.0)

    def right_of(x: float) -> float:
        return _LEFT + (x - x_low) * x_scale

    def above(y: float) -> float:
        return _HEIGHT - _BOTTOM - (y - y_low) * y_scale

    for y in dict.fromkeys((y_low, (y_low + y_high) / 2, y_high)):
        yield f'<path d="M{_LEFT} {above(y):.1f}H{_WIDTH - _RIGHT}" stroke="{_GRID}"/>'
        yield f'<text x="{_LEFT - 7}" y="{above(y) + 4:.1f}" text-anchor="end" fill="{_QUIET}">{y:,.4g}</text>'
    axis = f'y="{_HEIGHT - _BOTTOM + 16}" fill="{_QUIET}"'
    yield f'<text x="{_LEFT}" {axis}>{_count(x_low)}</text>'
    yield f'<text x="{_WIDTH - _RIGHT}" {axis} text-anchor="end">{_count(x_high)}</text>'
    yield f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" {axis} text-anchor="middle">{escape(x_title)}</text>'
    if bound is not None:
        line = f'stroke="{_BOUND}" stroke-dasharray="5 4"'
        yield f'<path d="M{_LEFT} {above(bound):.1f}H{_WIDTH - _RIGHT}" {line}/>'
    if points:
        corners = " ".join(f"{right_of(x):.1f},{above(y):.1f}" for x, y in points)
        yield f'<polyline points="{corners}" fill="none" stroke="{_CURVE}" stroke-width="2" stroke-linejoin="round"/>'
        yield f'<circle cx="{right_of(xs[-1]):.1f}" cy="{above(ys[-1]):.1f}" r="3.2" fill="{_CURVE}"/>'


def _count(value: float) -> str:
    return f"{value:,.0f}"
