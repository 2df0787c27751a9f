"""A small curve as SVG, drawn in less than a millisecond: a display draws it again and again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

_WIDTH, _HEIGHT = 560, 200  # pixels
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 12, 34
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_QUIET, _GRID, _CURVE, _BOUND = "#5d6875", "#e6e9ed", "#3b7dc4", "#d64550"

Points = Sequence[tuple[float, float]]


def draw_curve(points: Points, x_title: str, y_title: str, bound: float | None = None) -> str:
    """Return a curve as SVG.

    Args:
        points: x, which never falls, and y; finite.
        x_title: below the axis.
        y_title: for readers who do not see the curve.
        bound: y that is to be reached, drawn as a dashed line.
    """
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-family="{_FONT}" font-size="11"><title>{escape(y_title)}</title>'
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
