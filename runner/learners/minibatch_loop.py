"""What an update of one module is made of, besides the steps of its parameters: loss, minibatches, targets, metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runner.config.algorithms import AlgorithmConfig
from runner.config.errors import Problem
from runner.learners.collective import Collective
from runner.learners.loss import Loss
from runner.learners.loss_failure import LossNotFinite
from runner.learners.minibatches import Minibatches
from runner.learners.per_row_metrics import PerRowMetrics
from runner.learners.target_updates import TargetUpdates
from runner.modules.rl_module import RLModule
from runner.streams import restore_stream, stream_state

# Numbers that are sooner read one by one than stacked.
_FEW = 16

# Metric -> 0-d tensor, of one minibatch; None where a loss leaves the metric out.
Record = dict[str, Any]


@dataclass(frozen=True)
class LearnerUpdate:
    """What an update of one module gives.

    Attributes:
        metrics: means over minibatches; empty if there was nothing to learn from.
        compile_s: seconds of the update that were spent on compiling.
    """

    metrics: dict[str, float]
    _row_metrics: PerRowMetrics
    compile_s: float = 0.0

    @property
    def rows(self) -> dict[str, npt.NDArray[Any]]:
        """Name -> (V, ...), what the loss reported for each row with a loss in the last epoch, in the batch's order."""
        return self._row_metrics.in_order()


class MinibatchLoop:
    """The update of one module: cuts minibatches, follows up steps, and completes the metrics.

    Args:
        module: on the learner's device.
        loss: of the algorithm.
        config: epochs, minibatches, targets.
        stream: shuffles rows.
        device: of the module.
        collective: update the same module on other rows.
        loss_stream: for the random numbers of the loss; None: the loss keeps the stream that it has, and its state.
    """

    def __init__(
        self,
        module: RLModule,
        loss: Loss,
        config: AlgorithmConfig,
        stream: np.random.Generator,
        device: torch.device,
        collective: Collective,
        loss_stream: np.random.Generator | None = None,
    ) -> None:
        self.module, self.loss, self.config = module, loss, config
        self._stream, self._collective = stream, collective
        self._loss_stream = loss_stream if loss.draws else None
        if loss_stream is not None:
            loss.use_stream(loss_stream)
        self.minibatches = Minibatches(module, loss, config, stream, device, collective)
        self._targets = TargetUpdates(module, config)

    def new_rows(self) -> PerRowMetrics:
        """Return an empty collection of what the loss reports for each row."""
        return PerRowMetrics(self.config.metrics.rows)

    def end_step(self, num_rows: int) -> None:
        """Follow up a gradient step on so many rows of all learners."""
        self.loss.after_step(self.module, num_rows)
        self._targets.after_step(num_rows)

    def end(self, means: dict[str, float], of_steps: Mapping[str, float], num_steps: int) -> dict[str, float]:
        """Complete the metrics of an update, and let the loss adapt to them; `of_steps` are of the optimisers."""
        if num_steps == 0:
            return {}
        metrics = means | self.loss.coefficients() | dict(of_steps) | {"num_minibatch_updates": num_steps}
        self.loss.after_update(metrics)
        return metrics

    def means(self, records: Sequence[Record], lr_fields: Sequence[str]) -> dict[str, float]:
        """Return the mean of each metric over the minibatches that report it, in one transfer from the device.

        Raises:
            LossNotFinite: a metric is not finite; the message names the fields of learning rates.
        """
        names = [name for record in records for name, value in record.items() if value is not None]
        tensors = [value for record in records for value in record.values() if value is not None]
        if not tensors:
            return {}
        values = self._values(tensors)
        if not all(map(math.isfinite, values)):
            _fail_not_finite(records, lr_fields)
        if len(records) == 1:
            return dict(zip(names, values, strict=True))
        by_name: dict[str, list[float]] = {}
        for name, value in zip(names, values, strict=True):
            by_name.setdefault(name, []).append(value)
        return {name: sum(reported) / len(reported) for name, reported in by_name.items()}

    def _values(self, tensors: Sequence[Tensor]) -> list[float]:
        """Return 0-d tensors as numbers, means over the peers."""
        if len(tensors) <= _FEW and tensors[0].is_cpu and self._collective.num_learners == 1:
            return [float(tensor.item()) for tensor in tensors]  # in a quarter of the time
        with torch.no_grad():
            stacked = torch.stack(list(tensors))
        self._collective.mean(stacked)
        values: list[float] = stacked.tolist()
        return values

    def get_state(self) -> dict[str, Any]:
        """Return the state that all peers share: rows since the targets' last update."""
        return {"rows_since_target_update": self._targets.num_rows}

    def get_unshared_state(self) -> dict[str, Any]:
        """Return the state that may differ from the peers: loss and random streams."""
        state = {"loss": self.loss.get_state(), "stream": stream_state(self._stream)}
        return state if self._loss_stream is None else {**state, "loss_stream": stream_state(self._loss_stream)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from both states together."""
        self._targets.num_rows = int(state["rows_since_target_update"])
        if self._loss_stream is not None and "loss_stream" in state:
            restore_stream(self._loss_stream, state["loss_stream"])
        self.loss.set_state(state["loss"])
        restore_stream(self._stream, state["stream"])


def weighted_sums(records: Sequence[tuple[Record, float]]) -> Record:
    """Return the metrics of a minibatch from its microbatches and their shares of its rows."""
    if len(records) == 1:
        return records[0][0]
    first = records[0][0]
    return {
        name: None if value is None else sum(share * record[name].detach() for record, share in records)
        for name, value in first.items()
    }


def _fail_not_finite(records: Sequence[Record], lr_fields: Sequence[str]) -> None:
    lower = " or ".join(f"algorithm.{field}" for field in lr_fields)
    for number, record in enumerate(records, start=1):
        values = {name: float(value.detach()) for name, value in record.items() if value is not None}
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        if bad:
            problem = Problem(
                f"the loss is not finite: {bad[0]} is {values[bad[0]]}",
                where=f"learner update, minibatch {number} of {len(records)}",
                got=", ".join(f"{name} {value:.4g}" for name, value in values.items()),
                allowed=f"finite numbers; a lower {lower} or a smaller algorithm.grad_clip often helps",
            )
            raise LossNotFinite(problem)
