"""Train batches from recorded data, made before they reach a learner."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True)
class TrainBatch:
    """The data of one update.

    Attributes:
        columns: module id -> column -> tensor, as a learner takes it.
        num_env_steps: rows with a loss.
        ends_pass: whether it is the last batch of a pass over the data.
    """

    columns: dict[str, dict[str, Any]]
    num_env_steps: int
    ends_pass: bool


class BatchReader(Protocol):
    """Source of one learner's train batches; can be sent to the learner's process."""

    def batches(self, device: torch.device) -> Generator[TrainBatch, None, None]:
        """Yield batches on the device, pass after pass without end."""
