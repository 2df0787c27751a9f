"""Train batches from sampled episodes or recorded data."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from runner.pipelines.custom_metrics import ReducedMetrics


@dataclass(frozen=True)
class TrainBatch:
    """The data of one update.

    Attributes:
        columns: module id -> column -> tensor, in the form that a learner expects.
        num_env_steps: rows with a loss, for recorded data.
        ends_pass: whether it is the last batch of a pass over recorded data.
        connector_metrics: metric of the run -> values that connectors of the learner pipelines reported for these rows.
    """

    columns: dict[str, dict[str, Any]]
    num_env_steps: int = 0
    ends_pass: bool = False
    connector_metrics: ReducedMetrics = field(default_factory=dict)


class BatchReader(Protocol):
    """Source of one learner's train batches; can be sent to the learner's process."""

    def batches(self, device: torch.device) -> Generator[TrainBatch, None, None]:
        """Yield batches on the device in an endless sequence of passes."""


# Makes a reader for each learner when learners begin to read; it skips the batches that were already used.
MakeReaders = Callable[[], Sequence[BatchReader]]
