"""A module trained by a learner: its loss, minibatches and target networks, and the metrics of an update."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runner.config.algorithms import AlgorithmConfig, TargetNetworksConfig
from runner.config.errors import Problem
from runner.config.first_call import use_checked
from runner.learners.collective import Collective
from runner.learners.loss import Loss
from runner.learners.loss_checks import ComputeLoss, loss_contract
from runner.learners.loss_failure import LossNotFinite
from runner.learners.minibatches import Minibatch, Minibatches
from runner.learners.per_row_metrics import PerRowMetrics
from runner.modules.rl_module import RLModule
from runner.streams import restore_stream, stream_state

# Number of tensors up to which reading them one by one is faster than stacking.
_FEW = 16

# Metric -> 0-d tensor for one minibatch, or None if the loss omits the metric.
Record = dict[str, Any]


class TrainedModule:
    """A module with its loss, and the metrics of the running update.

    Args:
        module_id: id of the module.
        module: module on the learner's device; if it shares parameters, a member of the `MultiRLModule`.
        loss: loss of the algorithm.
        config: epochs, minibatches and targets of this module.
        stream: random stream for shuffling rows.
        loss_stream: random stream of the loss, or None if the loss keeps its stream and its state.
        collective: learners that update the same module on other rows, or None.

    Attributes:
        minibatches: splits batches.
        compute_loss: the loss; if it is user-defined, its first call is checked.
        rows: values that the loss reports per row in the running update.
    """

    compute_loss: ComputeLoss

    def __init__(
        self,
        module_id: str,
        module: RLModule,
        loss: Loss,
        config: AlgorithmConfig,
        stream: np.random.Generator,
        loss_stream: np.random.Generator | None = None,
        collective: Collective | None = None,
    ) -> None:
        self.module_id, self.module, self.loss, self.config = module_id, module, loss, config
        self._collective = collective or Collective()
        self._stream = stream
        self._loss_stream = loss_stream if loss.draws else None
        if loss_stream is not None:
            loss.use_stream(loss_stream)
        device = next(chain(module.parameters(), module.buffers())).device
        self.minibatches = Minibatches(module, loss, config, stream, device, self._collective)
        self._tau, self._target_freq = 1.0, None
        if isinstance(config, TargetNetworksConfig):
            self._tau, self._target_freq = config.tau, config.target_network_update_freq
        self.rows_since_target_update = 0
        use_checked(loss, loss, partial(loss_contract, loss, config), self._use)

    def _use(self, compute_loss: ComputeLoss) -> None:
        self.compute_loss = compute_loss

    # -- an update -----------------------------------------------------------------------------------------------------

    def begin(self, num_env_steps: int) -> None:
        """Begin an update after a number of env steps, which the schedules of the loss use."""
        self.loss.before_update(num_env_steps)
        self._records: list[Record] = []
        self.rows = PerRowMetrics(self.config.metrics.rows)

    def epochs(self, batch: Mapping[str, Any]) -> Iterator[Minibatch]:
        """Yield the minibatches of `num_epochs` passes over the rows of a batch."""
        self.loss.before_epochs(self.module, batch)
        yield from self.minibatches.epochs(batch)

    def is_at_limit(self, record: Record) -> bool:
        """Return whether the metrics of a minibatch, averaged over the peers, exceed a limit of the loss."""
        return any(self._values([record[name]])[0] > limit for name, limit in self.loss.limits.items())

    def end_step(self, num_rows: int, record: Record) -> None:
        """Finish a gradient step: count it, and update the target networks if they are due.

        Args:
            num_rows: rows of all learners in the step.
            record: metrics of the step.
        """
        self._records.append(record)
        self.loss.after_step(self.module, num_rows)
        if self._target_freq is None:
            return
        self.rows_since_target_update += num_rows
        if self.rows_since_target_update >= self._target_freq:
            self.module.update_targets(self._tau)
            self.rows_since_target_update = 0

    def end(self, of_optimizers: Mapping[str, float], reported: Mapping[str, float] | None = None) -> dict[str, float]:
        """Return the metrics of the update, and adapt the loss to them; empty if there was no step.

        Args:
            of_optimizers: learning rates.
            reported: metrics of gradients that were computed before, or None to use the metrics of the steps.

        Raises:
            LossNotFinite: a metric is not finite.
        """
        records, self._records = self._records, []
        if not records:
            return {}
        means = self.means(records)
        coefficients = self.loss.coefficients() | dict(of_optimizers)
        metrics = {**(reported or {}), **means, **coefficients, "num_minibatch_updates": len(records)}
        self.loss.after_update(metrics)
        return metrics

    def take_rows(self) -> dict[str, npt.NDArray[Any]]:
        """Return the values that the loss reported per row, and forget them and the batch."""
        rows, self.rows = self.rows.in_order(), PerRowMetrics(self.config.metrics.rows)
        return rows

    def means(self, records: Sequence[Record]) -> dict[str, float]:
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
            _fail_not_finite(records, list(self.config.optimizers.values()))
        if len(records) == 1:
            return dict(zip(names, values, strict=True))
        by_name: dict[str, list[float]] = {}
        for name, value in zip(names, values, strict=True):
            by_name.setdefault(name, []).append(value)
        return {name: sum(reported) / len(reported) for name, reported in by_name.items()}

    def _values(self, tensors: Sequence[Tensor]) -> list[float]:
        """Return 0-d tensors as numbers, averaged over the peers."""
        if len(tensors) <= _FEW and tensors[0].is_cpu and self._collective.num_learners == 1:
            return [float(tensor.item()) for tensor in tensors]  # takes a quarter of the time
        with torch.no_grad():
            stacked = torch.stack(list(tensors))
        self._collective.mean(stacked)
        values: list[float] = stacked.tolist()
        return values

    # -- state ---------------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the state that may differ between peers: loss and random streams."""
        state = {"loss": self.loss.get_state(), "stream": stream_state(self._stream)}
        return state if self._loss_stream is None else {**state, "loss_stream": stream_state(self._loss_stream)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        if self._loss_stream is not None and "loss_stream" in state:
            restore_stream(self._loss_stream, state["loss_stream"])
        self.loss.set_state(state["loss"])
        restore_stream(self._stream, state["stream"])


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
                expected="finite numbers",
                fix=f"try a lower {lower} or a smaller algorithm.grad_clip",
            )
            raise LossNotFinite(problem)
