"""Our pieces by `runner.testing.check_piece`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from runner.pipelines.piece import ConnectorPiece
from runner.testing import check_piece as check_piece


class PieceCase(NamedTuple):
    """Arguments of `check_piece`."""

    make: Callable[[], ConnectorPiece]
    pipeline: str
    verb: str
    anchor: str | None = None
    edits: Sequence[Mapping[str, Any]] = ()
