"""Pipelines as boxes with arrows: pieces in order, with the columns that they read and write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from runner.drawings.boxes import Box, Flow, Line, draw
from runner.pipelines.description import ENDS, columns_of, space_text
from runner.pipelines.piece import ConnectorPiece
from runner.pipelines.piece_list import PieceList

if TYPE_CHECKING:  # a pipeline draws itself
    from runner.pipelines.pipeline import ConnectorPipeline

_KINDS = ("observations", "actions")


def draw_pipeline(pipeline: ConnectorPipeline) -> str:
    """Return a pipeline as SVG."""
    begins, ends = ENDS.get(pipeline.name, ("", ""))
    spaces = [Line(kind, space_text(space)) for kind, space in zip(_KINDS, pipeline.input_spaces, strict=True)]
    boxes = [Box(begins or "input", spaces, is_end=True), *map(_box, pipeline), Box(ends or "output", is_end=True)]
    return draw(Flow(boxes, ["", *_changes(pipeline), None], pipeline.name), f"{pipeline.name}: {begins} -> {ends}")


def _box(piece: ConnectorPiece) -> Box:
    lines = [Line(label, ", ".join(columns)) for label, columns in columns_of(piece).items()]
    flows = []
    if isinstance(piece, PieceList):
        inner = list(map(_box, piece))
        flows = [Flow(inner, [*[""] * (len(inner) - 1), None][: len(inner)])]
    return Box(type(piece).__name__, lines, flows)


def _changes(pipeline: ConnectorPipeline) -> Iterator[str]:
    """Yield what stands beside the arrow after each piece: the spaces that it has changed."""
    spaces = pipeline.input_spaces
    for after in pipeline.spaces_after:
        pairs = zip(_KINDS, after, spaces, strict=True)
        yield ", ".join(f"{kind} {space_text(space)}" for kind, space, before in pairs if space != before)
        spaces = after
