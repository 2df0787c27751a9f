"""The learner: minimises a loss over shuffled minibatches of one train batch, several times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runner.config.algorithms import AlgorithmConfig
from runner.config.errors import ConfigError, Problem
from runner.episodes import nested
from runner.learners.allocation import keep_freed_memory
from runner.learners.flat_adam import FlatAdam
from runner.learners.loss import Loss
from runner.learners.loss_failure import LossNotFinite
from runner.learners.peers import Alone, Peers
from runner.learners.schedules import scheduled_value
from runner.modules.flat_parameters import FlatParameters
from runner.modules.rl_module import RLModule
from runner.pipelines.piece import LOSS_MASK, STEP_ROWS
from runner.streams import restore_stream, stream_state


class Learner:
    """Updates one module.

    Args:
        module: on the learner's device.
        loss: of the algorithm.
        config: learning rate, epochs, minibatches, clipping.
        stream: shuffles rows.
        peers: learners that update the same module on other rows; None: there are none.
    """

    def __init__(
        self,
        module: RLModule,
        loss: Loss,
        config: AlgorithmConfig,
        stream: np.random.Generator,
        peers: Peers | None = None,
    ) -> None:
        keep_freed_memory()
        self.module = module
        self.loss = loss
        self._config = config
        self._stream = stream
        self._peers: Peers = peers or Alone()
        self._weights = FlatParameters(module)
        optimizers, groups = config.optimizers, self._weights.groups
        self._lr_fields = list(optimizers.values())
        parts = [slice(None)] if len(optimizers) == 1 else [groups[name] for name in optimizers]
        self._optimizer = FlatAdam(self._weights.parameter, parts)
        self._gradient = self._weights.gradient
        self._lr_names = [f"{name}_optimizer_learning_rate" for name in optimizers]
        norm_names = [f"gradients_{name}_optimizer_global_norm" for name in optimizers]
        self._gradients = list(zip(norm_names, (self._gradient[part] for part in parts), strict=True))

    def update(self, batch: Mapping[str, Any], num_env_steps: int) -> dict[str, float]:
        """Update the module in `num_epochs` passes over the batch.

        Args:
            batch: column -> (B, ...) tensor on the module's device, nested where the space is; for a module with
                memory (S, L, ...), zero-padded sequences. Rows whose `loss_mask` is false take no part.
            num_env_steps: env steps sampled so far, for schedules.

        Returns:
            Metric -> value, means over minibatches.

        Raises:
            LossNotFinite: a loss is not finite. The parameters are then unusable; go on from a checkpoint.
        """
        lrs = [scheduled_value(getattr(self._config, field), num_env_steps) for field in self._lr_fields]
        self.loss.before_update(num_env_steps)
        records: list[dict[str, Tensor]] = []
        for minibatch, is_last_epoch in self._minibatches(batch):
            metrics = self.loss(self.module, minibatch, is_last_epoch)
            norms = self._step(metrics.total_loss, lrs)
            self.loss.after_step(self.module, minibatch)
            records.append(vars(metrics) | norms)
        result = self._means(records) | self.loss.coefficients()
        result |= dict(zip(self._lr_names, lrs, strict=True)) | {"num_minibatch_updates": len(records)}
        self.loss.after_update(result)
        return result

    def _minibatches(self, batch: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], bool]]:
        """Yield shuffled minibatches of nearly equal size, and whether the epoch is the last.

        Rows are gathered once an epoch and column; a minibatch is a view.
        """
        if self.module.is_stateful:
            yield from self._minibatches_of_sequences(batch)
            return
        columns = {name: batch[name] for name in self.loss.reads}
        valid_rows = np.arange(nested.row_count(columns))
        if LOSS_MASK in batch:
            valid_rows = batch[LOSS_MASK].nonzero().squeeze(-1).cpu().numpy()
        num_parts = num_minibatches(len(valid_rows), self._config.minibatch_size)
        sizes = even_sizes(len(valid_rows), self._agreed(num_parts, len(valid_rows)))
        for epoch in range(self._config.num_epochs):
            for minibatch in self._shuffled(columns, valid_rows, sizes):
                yield minibatch, epoch == self._config.num_epochs - 1

    def _agreed(self, num_parts: int, num_rows: int) -> int:
        """Agree on the number of minibatches: the most that a peer needs, with a row in each for every peer."""
        fewest_rows = -self._peers.most(-num_rows)
        return min(self._peers.most(num_parts), fewest_rows)

    def _shuffled(self, columns: dict[str, Any], rows: Any, sizes: list[int]) -> Iterator[dict[str, Any]]:
        """Yield the given rows in a new order, split into parts of these sizes."""
        order = torch.from_numpy(self._stream.permutation(rows)).to(self._gradient.device)
        parts = [_split(column, order, sizes) for column in columns.values()]
        for part in zip(*parts, strict=True):
            yield dict(zip(columns, part, strict=True))

    def _minibatches_of_sequences(self, batch: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], bool]]:
        """Yield minibatches for a module with memory: whole sequences (S, L), as many as their steps need.

        See `at_env_steps` for their columns.
        """
        mask = batch[LOSS_MASK]
        num_steps = mask.sum(1).cpu().numpy()
        sequences = np.flatnonzero(num_steps)  # a sequence of a bootstrap row alone has nothing to learn from
        num_parts = num_minibatches(int(num_steps.sum()), self._config.minibatch_size)
        num_parts = num_minibatches(len(sequences), -(-len(sequences) // num_parts))
        sizes = even_sizes(len(sequences), self._agreed(num_parts, len(sequences)))
        inputs = self.module.inputs
        columns = {name: batch[name] for name in dict.fromkeys((*inputs, LOSS_MASK, *self.loss.reads))}
        for epoch in range(self._config.num_epochs):
            for minibatch in self._shuffled(columns, sequences, sizes):
                yield at_env_steps(minibatch, inputs, self.loss.reads), epoch == self._config.num_epochs - 1

    def _step(self, total_loss: Tensor, lrs: Sequence[float]) -> dict[str, Tensor]:
        """Take a gradient step; returns the norm of each optimiser's gradient before clipping."""
        self._gradient.zero_()
        total_loss.backward()  # type: ignore[no-untyped-call]
        self._peers.mean(self._gradient)
        grad_clip, norms = self._config.grad_clip, {}
        for name, gradient in self._gradients:
            norms[name] = norm = torch.linalg.vector_norm(gradient)
            if grad_clip is not None:
                gradient.mul_((grad_clip / (norm + 1e-6)).clamp_(max=1.0))
        self._optimizer.step(*lrs)
        return norms

    def _means(self, records: list[dict[str, Tensor]]) -> dict[str, float]:
        """The mean of each metric over the minibatches that report it, in one transfer from the device."""
        names = [name for record in records for name, value in record.items() if value is not None]
        tensors = [value.detach() for record in records for value in record.values() if value is not None]
        stacked = torch.stack(tensors)
        self._peers.mean(stacked)
        values = stacked.cpu().numpy().astype(np.float64)
        if not np.isfinite(values).all():
            self._fail_not_finite(records)
        by_name: dict[str, list[float]] = {}
        for name, value in zip(names, values.tolist(), strict=True):
            by_name.setdefault(name, []).append(value)
        return {name: sum(reported) / len(reported) for name, reported in by_name.items()}

    def _fail_not_finite(self, records: list[dict[str, Tensor]]) -> None:
        lower = " or ".join(f"algorithm.{field}" for field in self._lr_fields)
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

    @property
    def device(self) -> torch.device:
        """The device of the module."""
        return self._gradient.device

    def get_weights(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return all parameters (P,), for env runners."""
        return self._weights.to_numpy()

    def get_state(self) -> dict[str, Any]:
        """Return parameters, optimiser, loss and random stream."""
        return {
            "module": {name: value.clone() for name, value in self.module.state_dict().items()},
            "optimizer": self._optimizer.get_state(),
            **self.get_unshared_state(),
        }

    def get_unshared_state(self) -> dict[str, Any]:
        """Return the state that may differ from the peers: loss and random stream."""
        return {"loss": self.loss.get_state(), "stream": stream_state(self._stream)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`.

        Raises:
            ConfigError: the parameters are of another network.
        """
        self._check_same_network(state["module"])
        with torch.no_grad():
            parameters = self.module.state_dict()
            for name, value in state["module"].items():
                parameters[name].copy_(torch.as_tensor(value))
        self._optimizer.set_state(state["optimizer"])
        self.loss.set_state(state["loss"])
        restore_stream(self._stream, state["stream"])

    def _check_same_network(self, parameters: Mapping[str, Any]) -> None:
        expected = {name: tuple(value.shape) for name, value in self.module.state_dict().items()}
        saved = {name: tuple(value.shape) for name, value in parameters.items()}
        if expected == saved:
            return
        differing = sorted(name for name in {*expected, *saved} if expected.get(name) != saved.get(name))
        problem = Problem(
            "the checkpoint's network is not the one that this configuration describes",
            where="module",
            got="; ".join(f"{name} {saved.get(name, 'missing')}" for name in differing) + " in the checkpoint",
            allowed="; ".join(f"{name} {expected.get(name, 'missing')}" for name in differing)
            + " in this configuration",
        )
        raise ConfigError([problem])


def _split(column: Any, order: Tensor, sizes: list[int]) -> Sequence[Any]:
    """Take the rows `order` of a column, split into parts of these sizes."""
    if isinstance(column, Tensor):
        return torch.split(column.index_select(0, order), sizes)
    rows = nested.map_leaves(lambda leaf: leaf.index_select(0, order), column)
    ends = np.cumsum(sizes).tolist()
    return [nested.take(rows, slice(end - size, end)) for end, size in zip(ends, sizes, strict=True)]


def at_env_steps(sequences: Mapping[str, Any], inputs: Sequence[str], reads: Sequence[str]) -> dict[str, Any]:
    """Make a minibatch for a module with memory from columns (S, L, ...).

    Columns that the module reads (`inputs`) stay in sequences. Other columns of the loss become rows of env steps
    (V, ...), numbered by `step_rows`, so that no loss sees a padded row.
    """
    step_rows = sequences[LOSS_MASK].flatten().nonzero().squeeze(-1)
    others = {
        name: nested.map_leaves(partial(_rows_at, step_rows), sequences[name]) for name in reads if name not in inputs
    }
    return {**sequences, **others, STEP_ROWS: step_rows}


def _rows_at(step_rows: Tensor, column: Tensor) -> Tensor:
    """Take rows of (S, L, ...) by their index into (S * L)."""
    return column.flatten(0, 1).index_select(0, step_rows)


def num_minibatches(num_rows: int, minibatch_size: int | None) -> int:
    """Return the fewest minibatches with at most `minibatch_size` rows."""
    return 1 if minibatch_size is None else -(-num_rows // minibatch_size)


def even_sizes(num_rows: int, num_parts: int) -> list[int]:
    """Return the row counts of `num_parts` parts, which differ by one at most."""
    return [num_rows // num_parts + (index < num_rows % num_parts) for index in range(num_parts)]
