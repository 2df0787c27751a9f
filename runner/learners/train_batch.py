"""Train batches from recorded data, made before they reach a learner."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from runner.pipelines.piece_metrics import ConnectorMetrics


@dataclass(frozen=True)
class TrainBatch:
    """The data of one update.

    Attributes:
        columns: module id -> column -> tensor, as a learner takes it.
        num_env_steps: rows with a loss.
        ends_pass: whether it is the last batch of a pass over the data.
        connector_metrics: metric of the run -> what pieces of the learner pipelines have reported for these rows.
    """

    columns: dict[str, dict[str, Any]]
    num_env_steps: int
    ends_pass: bool
    connector_metrics: ConnectorMetrics = field(default_factory=dict)


class BatchReader(Protocol):
    """Source of one learner's train batches; can be sent to the learner's process."""

    def batches(self, device: torch.device) -> Generator[TrainBatch, None, None]:
        """Yield batches on the device, pass after pass without end."""
