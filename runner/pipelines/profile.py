"""What each piece of a pipeline costs per call."""

from __future__ import annotations

import statistics
import time
from typing import Any

from runner.pipelines.piece import Batch, ConnectorPiece
from runner.pipelines.pipeline import ConnectorPipeline


class TimedPiece(ConnectorPiece):
    """A piece that keeps the seconds of each of its calls."""

    def __init__(self, piece: ConnectorPiece) -> None:
        self.piece = piece
        self.seconds: list[float] = []
        self.reads, self.writes, self.writes_per_fragment = piece.reads, piece.writes, piece.writes_per_fragment

    def __call__(self, **kwargs: Any) -> Batch:
        """Call the piece."""
        started = time.perf_counter()
        batch = self.piece(**kwargs)
        self.seconds.append(time.perf_counter() - started)
        return batch

    def complete_fragment(self, columns: dict[str, Any], rl_module: Any) -> None:
        """Let the piece add its columns; not timed."""
        self.piece.complete_fragment(columns, rl_module)

    @property
    def microseconds(self) -> float:
        """The median call, in us."""
        return statistics.median(self.seconds) * 1e6


def time_pieces(pipeline: ConnectorPipeline) -> list[TimedPiece]:
    """Time every piece of the pipeline from now on; the list has one entry for each, in order."""
    timed = [TimedPiece(piece) for piece in pipeline]
    pipeline.substitute_pieces(timed)
    return timed
