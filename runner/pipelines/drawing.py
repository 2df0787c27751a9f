"""Drawing of pipelines as boxes with arrows: connectors in order, with the columns that they read and write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import gymnasium as gym

from runner.drawings import Box, BoxStack, Line, draw
from runner.pipelines.connector import Connector
from runner.pipelines.connector_list import ConnectorList
from runner.pipelines.description import ENDS, columns_of, space_text

# Observation space and action space.
Spaces = tuple[gym.Space[Any], gym.Space[Any]]
_KINDS = ("observations", "actions")


def draw_pipeline(connectors: ConnectorList, input_spaces: Spaces, spaces_after: Iterable[Spaces]) -> str:
    """Return a pipeline as SVG.

    Args:
        connectors: the pipeline.
        input_spaces: spaces before the first connector.
        spaces_after: spaces after each connector.
    """
    begins, ends = ENDS.get(connectors.name, ("", ""))
    spaces = [Line(kind, space_text(space)) for kind, space in zip(_KINDS, input_spaces, strict=True)]
    boxes = [Box(begins or "input", spaces, is_end=True), *map(_box, connectors), Box(ends or "output", is_end=True)]
    changes = _changes(input_spaces, spaces_after)
    return draw(BoxStack(boxes, ["", *changes, None], connectors.name), f"{connectors.name}: {begins} -> {ends}")


def _box(connector: Connector) -> Box:
    lines = [Line(label, ", ".join(columns)) for label, columns in columns_of(connector).items()]
    flows = []
    if isinstance(connector, ConnectorList):
        inner = list(map(_box, connector))
        flows = [BoxStack(inner, [*[""] * (len(inner) - 1), None][: len(inner)])]
    return Box(type(connector).__name__, lines, flows)


def _changes(spaces: Spaces, spaces_after: Iterable[Spaces]) -> Iterator[str]:
    """Yield the label of the arrow after each connector: the spaces that it has changed."""
    for after in spaces_after:
        pairs = zip(_KINDS, after, spaces, strict=True)
        yield ", ".join(f"{kind} {space_text(space)}" for kind, space, before in pairs if space != before)
        spaces = after
