"""Train batches that are made before they reach a learner, from recorded data."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True)
class TrainBatch:
    """What one update learns from.

    Attributes:
        columns: module id -> column -> tensor, as a learner takes it.
        num_env_steps: rows with a loss.
        ends_pass: whether it is the last one of a pass over the data.
    """

    columns: dict[str, dict[str, Any]]
    num_env_steps: int
    ends_pass: bool


class BatchReader(Protocol):
    """Gives one learner its train batches; can be sent to the learner's process."""

    def batches(self, device: torch.device) -> Generator[TrainBatch, None, None]:
        """Batches on the device, pass after pass without end."""
