"""Pieces of learner pipelines that aggregators may call, and pieces that they must not."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from runner.pipelines import LearnerPiece, PieceMetrics

Batch = dict[str, Any]


class ProcessNumber(LearnerPiece):
    """Reports the process that it is called in."""

    reports = {"process": ("last", "number of the process"), "num_rows": ("sum", "rows that passed")}  # noqa: RUF012

    def __call__(self, *, batch: Batch, metrics: PieceMetrics | None = None, **_: Any) -> Batch:
        if metrics is not None:
            metrics.report("process", os.getpid())
            metrics.report("num_rows", len(batch["rewards"]))
        return batch


class Failing(LearnerPiece):
    """Fails at its third call."""

    num_calls = 0

    def __call__(self, *, batch: Batch, **_: Any) -> Batch:
        self.num_calls += 1
        if self.num_calls == 3:
            raise ValueError("these rows are not good")
        return batch


class Stalling(LearnerPiece):
    """Returns from its first call alone."""

    num_calls = 0

    def __call__(self, *, batch: Batch, **_: Any) -> Batch:
        self.num_calls += 1
        while self.num_calls > 1:
            time.sleep(60)
        return batch


class Noting(LearnerPiece):
    """Leaves a note for later pieces."""

    def __call__(self, *, batch: Batch, shared_data: Any = None, **_: Any) -> Batch:
        shared_data["seen"] = True
        return batch


class Counting(LearnerPiece):
    """Keeps a state."""

    def __call__(self, *, batch: Batch, **_: Any) -> Batch:
        return batch

    def get_state(self) -> dict[str, Any]:
        return {"count": 1}


class Drawing(LearnerPiece):
    """Owns a random stream."""

    def __call__(self, *, batch: Batch, **_: Any) -> Batch:
        return batch

    def use_stream(self, stream: np.random.Generator) -> None:
        self._stream = stream
