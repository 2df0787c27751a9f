"""Drawings of boxes and arrows: nothing is cut off, covered, or taken for markup."""

from __future__ import annotations

from xml.etree import ElementTree

from runner.drawings import Box, BoxStack, Line, draw

SVG = "{http://www.w3.org/2000/svg}"
CHARACTER = 7.2  # pixels of a fixed-width font of 12 pixels


def parsed(flow: BoxStack) -> ElementTree.Element:
    """The elements of a drawing."""
    return ElementTree.fromstring(draw(flow, "of a test"))


def texts_of(drawing: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in drawing.iter(f"{SVG}text")]


def rectangles_of(drawing: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    """Left, top, right and bottom of each rectangle, the ground first."""
    found = []
    for one in drawing.iter(f"{SVG}rect"):
        x, y, width, height = (float(one.attrib[name]) for name in ("x", "y", "width", "height"))
        found.append((x, y, x + width, y + height))
    return found


def nested(depth: int) -> BoxStack:
    """Boxes in boxes, two side by side."""
    inner = [nested(depth - 1), nested(depth - 1)] if depth else []
    boxes = [Box(f"first of {depth}", [Line("key", "value " * 20)], inner), Box("second", is_end=True)]
    return BoxStack(boxes, ["Experiences or TrainResult or something long", None], f"plan {depth}")


def test_everything_is_within_the_ground() -> None:
    drawing = parsed(nested(2))
    (left, top, right, bottom), *others = rectangles_of(drawing)
    assert len(others) > 10
    for x, y, far, low in others:
        assert left < x < far < right
        assert top < y < low < bottom
    for text in drawing.iter(f"{SVG}text"):
        assert left < float(text.attrib["x"])
        assert float(text.attrib["x"]) + CHARACTER * len(text.text or "") < right
        assert top < float(text.attrib["y"]) < bottom


def test_boxes_are_within_each_other_or_apart() -> None:
    boxes = rectangles_of(parsed(nested(2)))
    for one in boxes:
        for other in boxes:
            is_apart = one[2] < other[0] or other[2] < one[0] or one[3] < other[1] or other[3] < one[1]
            is_inside = all(a >= b for a, b in zip(one[:2], other[:2], strict=True)) and one[2] <= other[2]
            contains = all(a <= b for a, b in zip(one[:2], other[:2], strict=True)) and one[2] >= other[2]
            assert is_apart or is_inside or contains


def test_long_lines_are_broken_and_nothing_is_lost() -> None:
    words = [f"column_{number}" for number in range(30)]
    texts = texts_of(parsed(BoxStack([Box("Connector", [Line("reads", ", ".join(words))])], [None])))
    assert max(map(len, texts)) <= 52
    assert " ".join(text for text in texts if "column" in text) == ", ".join(words)


def test_an_arrow_for_each_thing_that_is_given() -> None:
    drawing = parsed(BoxStack([Box("a"), Box("b"), Box("c")], ["x", "", None]))
    assert len(list(drawing.iter(f"{SVG}path"))) == 2 * 2  # line and head
    assert texts_of(drawing) == ["a", "x", "b", "c"]


def test_names_are_no_markup() -> None:
    drawing = parsed(BoxStack([Box("<script>", [Line("&", "</text>")])], ['"<'], "<title>"))
    assert texts_of(drawing) == ["<title>", "<script>", "& ", "</text>", '"<']
