"""Values that a loss reports per row, in the order of the batch's rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runner.learners.minibatches import Minibatch


class PerRowMetrics:
    """Collects the fields of loss records that have a row axis, over the minibatches of the last epoch.

    Args:
        names: names of these fields; if empty, nothing is collected.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._parts: dict[str, list[Tensor]] = {name: [] for name in names}
        self._minibatches: list[Minibatch] = []

    def extract(self, record: dict[str, Any], minibatch: Minibatch) -> dict[str, Any]:
        """Move the per-row fields out of the record of a microbatch, and return the other fields."""
        if not self._names:
            return record
        if minibatch.is_last_epoch:
            if not self._minibatches or self._minibatches[-1] is not minibatch:
                self._minibatches.append(minibatch)
            for name in self._names:
                self._parts[name].append(record[name].detach())
        return {name: value for name, value in record.items() if name not in self._names}

    def in_order(self) -> dict[str, npt.NDArray[Any]]:
        """Return name -> (V, ...), one value for each row with a loss."""
        if not self._minibatches:
            return {}
        if len(self._minibatches) == 1 and self._minibatches[0].is_in_order:
            return {name: _joined(parts).cpu().numpy() for name, parts in self._parts.items()}
        row_indices = np.concatenate([minibatch.row_indices() for minibatch in self._minibatches])
        rows = {}
        for name, parts in self._parts.items():
            values = _joined(parts).cpu().numpy()
            rows[name] = np.empty_like(values)
            rows[name][row_indices] = values
        return rows


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
