"""Display in a notebook: one output that is updated in place, with the curve of the metric that ends the run."""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from typing import Any

from runner.drawings import draw_curve
from runner.tracking import headline
from runner.tracking.display import Display, DisplayInfo
from runner.tracking.plain_values import finite_number

MIN_INTERVAL_S = 0.5
MOST_POINTS = 400
_COUNTS = (headline.ITERATION, headline.ENV_STEPS, headline.TOTAL_S)
_CARD = (
    "box-sizing:border-box;max-width:640px;padding:12px 16px;background:#fff;color:#1c232b;border:1px solid #e1e5ea;"
    "border-radius:10px;font:14px/1.5 system-ui,sans-serif;text-align:left"
)
_QUIET = "color:#5d6875;font-size:12px"


def is_in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, without importing IPython."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class NotebookDisplay(Display):
    """An output that is updated in place, at most twice per second and at the end.

    It is updated in the training thread.

    Args:
        publish: shows HTML, and returns a function that replaces it. None uses IPython's display.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        publish: Callable[[str], Callable[[str], object]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(clock)
        self._publish = publish or _publish
        self._replace: Callable[[str], object] | None = None
        self._next_s = self._started_s
        self._curve = _Curve({})

    def start(self, info: DisplayInfo) -> None:
        super().start(info)
        self._metrics, self._curve = info.initial, _Curve(info.stop)
        self._next_s = self._started_s + MIN_INTERVAL_S
        self._show()

    def update(self, metrics: Mapping[str, Any]) -> None:
        super().update(metrics)
        self._curve.add(metrics)
        if self._updated_s >= self._next_s:
            self._next_s = self._updated_s + MIN_INTERVAL_S
            self._show()

    def note(self, text: str) -> None:
        with suppress(OSError, ValueError):
            print(text, flush=True)

    def _close(self, summary_lines: Sequence[str]) -> None:
        if summary_lines or self._replace is not None:
            self._show(summary_lines)

    def _show(self, summary_lines: Sequence[str] = ()) -> None:
        html = self.render(summary_lines)
        with suppress(Exception):  # a closed notebook must not stop the training
            if self._replace is None:
                self._replace = self._publish(html)
            else:
                self._replace(html)

    def render(self, summary_lines: Sequence[str] = ()) -> str:
        """Return the current output, with the closing lines at the end of the run."""
        return "".join([f'<div style="{_CARD}">', *self._parts(summary_lines), "</div>"])

    def _parts(self, summary_lines: Sequence[str]) -> Iterator[str]:
        self._time_left.update(self._metrics, self._updated_s)
        yield f'<div style="font-size:16px;font-weight:650">{escape(self._info.title)}</div>'
        yield f'<div style="{_QUIET}">{" · ".join(map(escape, self._info.facts.values()))}</div>'
        yield '<div style="display:flex;flex-wrap:wrap;gap:4px 24px;margin:8px 0">'
        for name, text in self._numbers():
            yield f'<div><div style="{_QUIET}">{name}</div><div style="font-weight:600">{escape(text)}</div></div>'
        yield "</div>"
        if self._time_left.fraction_done is not None:
            share = f"{self._time_left.fraction_done:.0%}"
            bar = f'<div style="width:{share};height:4px;border-radius:2px;background:#3b7dc4"></div>'
            yield f'<div style="background:#e6e9ed;border-radius:2px;margin:0 0 8px">{bar}</div>'
        if self._curve.points:
            yield self._curve.image()
        if summary_lines:
            end, *others = summary_lines
            text = "\n".join(others)
            yield f'<div style="margin-top:6px;font-weight:600">{escape(end)}</div>'
            style = f"{_QUIET};margin:2px 0 0;white-space:pre-wrap;overflow-wrap:anywhere"
            yield f'<pre style="{style}">{escape(text)}</pre>'

    def _numbers(self) -> Iterator[tuple[str, str]]:
        metrics = self._metrics
        yield "iteration", headline.count_text(metrics.get(headline.ITERATION))
        yield "env steps", headline.count_text(metrics.get(headline.ENV_STEPS))
        yield "steps/s", headline.count_text(metrics.get(headline.STEPS_PER_S))
        if self._info.samples_episodes:
            yield "return", headline.number_text(metrics.get(headline.RETURN))
        if self._evaluation is not None:
            yield "evaluation", headline.number_text(self._evaluation)
        yield "elapsed", headline.time_text(self._updated_s - self._started_s)
        if not self._is_finished:
            yield "left", self._time_left.text(self._updated_s)


class _Curve:
    """The metric that ends the run, over env steps: the first of `stop` that is not a counter, else the return."""

    def __init__(self, stop: Mapping[str, float]) -> None:
        self.metric = next((name for name in stop if name not in _COUNTS), headline.RETURN)
        self.points: list[tuple[float, float]] = []
        self._bound = finite_number(stop.get(self.metric))
        self._axis = headline.ENV_STEPS
        self._every, self._num_left_out = 1, 0

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Add a point. Of many points, only every second, fourth and so on is kept."""
        if not self.points and not metrics.get(headline.ENV_STEPS):
            self._axis = headline.ITERATION
        x, y = finite_number(metrics.get(self._axis)), finite_number(metrics.get(self.metric))
        if x is None or y is None:
            return
        self._num_left_out += 1
        if self._num_left_out >= self._every:
            self._num_left_out = 0
            self.points.append((x, y))
        if len(self.points) > MOST_POINTS:
            del self.points[1::2]
            self._every *= 2

    def image(self) -> str:
        axis = "iteration" if self._axis == headline.ITERATION else "env steps"
        svg = base64.b64encode(draw_curve(self.points, axis, self.metric, self._bound).encode()).decode()
        title = f'<div style="{_QUIET}">{escape(self.metric)}</div>'
        address = f"data:image/svg+xml;base64,{svg}"
        return f'{title}<img src="{address}" alt="{escape(self.metric)}" style="max-width:100%;height:auto">'


def _publish(html: str) -> Callable[[str], object]:
    from IPython.display import HTML, display

    handle = display(HTML(html), display_id=True)
    return lambda newer: handle.update(HTML(newer))
