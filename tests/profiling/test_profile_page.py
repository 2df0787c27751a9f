"""Flame graphs: where the frames are, what they say, and that no name is read as HTML."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from runner.profiling.profile import ENVIRONMENT, UPDATE
from runner.profiling.profile_page import flame_graph
from runner.profiling.sampler import Frame

LOOP = Frame("train.<locals>.<lambda>", "mine.py", 3)
STEP = Frame("SyncEnvironments.step", "runner/env_runners/vector_envs.py", 208)
LEARN = Frame("Learner.update", "runner/learners/learner.py", 100)
LOSS = Frame("Loss.__call__", "runner/learners/ppo.py", 44)
STACKS = {(LOOP, STEP): 1.0, (LOOP, LEARN): 1.0, (LOOP, LEARN, LOSS): 2.0}

Drawn = tuple[float, float, float, str]


def drawn(text: str) -> dict[str, Drawn]:
    """x, y, width and fill of each frame by the function in its title."""
    root = ElementTree.fromstring(text)
    found = {}
    for one in root.findall("svg"):
        title, rect = one.find("title"), one.find("rect")
        assert title is not None
        assert rect is not None
        x, y, width = (float(str(one.get(name)).rstrip("%")) for name in ("x", "y", "width"))
        found[str(title.text).split(" (")[0]] = (x, y, width, str(rect.get("fill")))
    return found


def test_a_frame_is_below_its_caller_and_as_wide_as_its_time() -> None:
    frames = drawn(flame_graph(STACKS, 2, "driver"))
    heights = {name: y for name, (_, y, _, _) in frames.items()}
    assert heights[LOOP.function] == 0
    assert heights[STEP.function] == heights[LEARN.function] < heights[LOSS.function]
    places = {name: (x, x + width) for name, (x, _, width, _) in frames.items()}
    assert places[LOOP.function] == (0, 100)
    assert places[LEARN.function] == (0, 75)
    assert places[LOSS.function] == (0, 50)
    assert places[STEP.function] == (75, 100)


def test_colours_say_the_category_and_are_quiet_where_there_are_several() -> None:
    frames = drawn(flame_graph(STACKS, 2, "driver"))
    assert frames[STEP.function][3] == ENVIRONMENT.colour
    assert frames[LEARN.function][3] == frames[LOSS.function][3] == UPDATE.colour
    assert frames[LOOP.function][3] not in (ENVIRONMENT.colour, UPDATE.colour)


def test_titles_tell_place_time_and_share() -> None:
    text = flame_graph(STACKS, 2, "driver")
    assert "Loss.__call__ (runner/learners/ppo.py:44) · 1,000.00 ms per iteration, 50.0% · update<" in text
    assert "train.&lt;locals&gt;.&lt;lambda&gt; (mine.py:3) · 2,000.00 ms per iteration, 100.0%<" in text


def test_what_is_too_narrow_to_be_seen_is_left_out() -> None:
    text = flame_graph({(STEP,): 1.0, (LEARN,): 0.0001}, 1, "driver")
    assert list(drawn(text)) == [STEP.function]
    assert re.search(r'height="18">', text)  # one row
    assert flame_graph({}, 1, "driver") == ""


def test_a_deep_recursion_of_the_users_code() -> None:
    text = flame_graph({tuple(Frame("recurse", "mine.py", line) for line in range(3000)): 1.0}, 1, "driver")
    assert text.count("<rect") == 3000
    assert re.search(rf'height="{3000 * 18}">', text)
