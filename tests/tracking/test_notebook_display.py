"""The display in a notebook; tests/notebooks runs it in a kernel."""

from __future__ import annotations

import base64
import itertools
import math
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest

from runner.drawings import draw_curve
from runner.tracking.display import DisplayInfo, PlainDisplay
from runner.tracking.display_modes import make_display
from runner.tracking.notebook_display import MOST_POINTS, NotebookDisplay, is_in_notebook

RETURN = "env_runners/episode_return_mean"
INFO = DisplayInfo(
    "ppo_cartpole", {"environment": "CartPole-v1"}, {"num_env_steps_sampled_lifetime": 40_000, RETURN: 450.0}
)
SVG = "{http://www.w3.org/2000/svg}"


class Output:
    """The output of a cell, with everything that it has shown."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.shown: list[str] = []
        self.num_outputs = 0

    def clock(self) -> float:
        return self.now_s

    def publish(self, html: str) -> Callable[[str], object]:
        self.num_outputs += 1
        self.shown.append(html)
        return self.shown.append


def metrics_of(iteration: int, **more: Any) -> dict[str, Any]:
    return {
        "training_iteration": iteration,
        "num_env_steps_sampled_lifetime": 100 * iteration,
        "env_steps_per_s": 5000.0,
        RETURN: 2.0 * iteration,
    } | more


def shown_by(output: Output, num_iterations: int, interval_s: float, info: DisplayInfo = INFO) -> NotebookDisplay:
    display = NotebookDisplay(output.publish, output.clock)
    display.start(info)
    for iteration in range(1, num_iterations + 1):
        output.now_s += interval_s
        display.update(metrics_of(iteration))
    return display


def curve_of(html: str) -> ElementTree.Element:
    (picture,) = re.findall(r'data:image/svg\+xml;base64,([^"]+)', html)
    return ElementTree.fromstring(base64.b64decode(picture))


def corners_of(drawing: ElementTree.Element) -> list[tuple[float, float]]:
    (line,) = drawing.iter(f"{SVG}polyline")
    return [tuple(map(float, corner.split(","))) for corner in line.attrib["points"].split()]  # type: ignore[misc]


def test_one_output_is_updated_twice_a_second() -> None:
    output = Output()
    display = shown_by(output, num_iterations=100, interval_s=0.03)
    assert output.num_outputs == 1
    assert 1 + 3.0 / 0.5 - 1 <= len(output.shown) <= 1 + 3.0 / 0.5
    display.finish(["finished: because", "  run dir  /runs/1"], is_done=True)
    last = output.shown[-1]
    for text in (
        "ppo_cartpole",
        "CartPole-v1",
        "100",
        "10,000",
        "5,000",
        "200",
        "3.0 s",
        "finished: because",
        "/runs/1",
    ):
        assert text in last
    assert "/runs/1" in last
    assert RETURN in last
    num_shown = len(output.shown)
    display.finish(["finished again"])
    assert len(output.shown) == num_shown


def test_the_curve_rises_to_the_bound() -> None:
    output = Output()
    shown_by(output, num_iterations=9, interval_s=1.0)
    drawing = curve_of(output.shown[-1])
    corners = corners_of(drawing)
    assert len(corners) == 9
    assert all(x < after_x and y > after_y for (x, y), (after_x, after_y) in itertools.pairwise(corners))
    (bound,) = (path for path in drawing.iter(f"{SVG}path") if "stroke-dasharray" in path.attrib)
    height = float(bound.attrib["d"].partition(" ")[2].partition("H")[0])
    assert height < corners[-1][1]
    assert {"100", "900", "450", "env steps"} <= {text.text for text in drawing.iter(f"{SVG}text")}


def test_a_bound_that_is_never_reached_is_not_drawn() -> None:
    output = Output()
    shown_by(output, num_iterations=2, interval_s=1.0, info=DisplayInfo("one", stop={RETURN: math.inf}))
    drawing = curve_of(output.shown[-1])
    assert not [path for path in drawing.iter(f"{SVG}path") if "stroke-dasharray" in path.attrib]
    assert "nan" not in ElementTree.tostring(drawing, encoding="unicode")


def test_long_runs_keep_few_points_from_the_first_to_near_the_last() -> None:
    output = Output()
    shown_by(output, num_iterations=5000, interval_s=0.5)
    corners = corners_of(curve_of(output.shown[-1]))
    assert MOST_POINTS / 3 < len(corners) <= MOST_POINTS
    steps = [after - before for (before, _), (after, _) in itertools.pairwise(corners)]
    assert max(steps[:-1]) < 3 * min(steps[:-1])


@pytest.mark.parametrize(
    ("stop", "metric"),
    [
        ({"num_env_steps_sampled_lifetime": 10.0}, RETURN),
        ({"learners/default_policy/kl": 1.0, RETURN: 1.0}, "learners/default_policy/kl"),
    ],
)
def test_the_curve_is_of_the_metric_that_ends_the_run(stop: dict[str, float], metric: str) -> None:
    output = Output()
    display = NotebookDisplay(output.publish, output.clock)
    display.start(DisplayInfo("one", stop=stop))
    for iteration in (1, 2):
        output.now_s += 1.0
        display.update(metrics_of(iteration, **{"learners/default_policy/kl": 3.0}))
    assert curve_of(output.shown[-1]).findtext(f"{SVG}title") == metric


def test_what_has_no_number_yet_is_left_out() -> None:
    output = Output()
    display = NotebookDisplay(output.publish, output.clock)
    display.start(INFO)
    output.now_s += 1.0
    display.update({"training_iteration": 1, RETURN: None})
    assert "<img" not in output.shown[-1]


def test_names_are_no_markup() -> None:
    output = Output()
    evil = "<img src=x onerror=alert(1)>"
    display = shown_by(output, 2, 1.0, DisplayInfo(evil, {"run dir": evil}, {evil: 1.0}))
    display.finish([evil, evil])
    assert all("<img src=x" not in html for html in output.shown)


def test_a_notebook_that_has_gone_ends_no_training() -> None:
    def gone(html: str) -> Callable[[str], object]:
        raise RuntimeError("no front end")

    display = NotebookDisplay(gone)
    display.start(INFO)
    display.update(metrics_of(1))
    display.finish(["finished"])


def test_flat_and_single_points_are_drawn() -> None:
    for points in ([(0.0, 0.0)], [(1.0, 5.0), (2.0, 5.0)], []):
        ElementTree.fromstring(draw_curve(points, "env steps", "return"))


def test_outside_of_notebooks_lines_are_plain_and_ipython_is_not_imported() -> None:
    assert not is_in_notebook()
    assert isinstance(make_display("auto"), PlainDisplay)
    program = (
        "import sys; from runner.tracking.display_modes import make_display; make_display('auto'); "
        "print([name for name in sys.modules if 'IPython' in name])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
