"""Split a train batch into minibatches: by rows, or by entire sequences for a stateful module.

Dimension letters: B rows, S sequences of length L, V env steps with a loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runner.config.algorithms import AlgorithmConfig
from runner.episodes import nested
from runner.learners.collective import Collective
from runner.learners.loss import Loss
from runner.modules.rl_module import RLModule, rows_at
from runner.pipelines.connector import LOSS_MASK, STEP_ROWS

Indices = npt.NDArray[np.int64]  # of units in a train batch, or of their env steps


class _Units:
    """The units of a train batch that are never split: rows (B, ...), for a stateless module.

    Attributes:
        columns: column -> (units, ...) tensor, nested like the space.
        indices: indices of the units with a loss, in the batch's order.
        num_rows: total number of env steps with a loss.
    """

    columns: dict[str, Any]
    indices: Indices
    num_rows: int
    _all: Indices | None = None  # `indices`, if all units have a loss and are rows

    def __init__(self, batch: Mapping[str, Any], reads: Sequence[str]) -> None:
        self.columns = {name: batch[name] for name in reads}
        if LOSS_MASK in batch:
            self.indices = np.flatnonzero(batch[LOSS_MASK].cpu().numpy())
        else:
            self._all = self.indices = _first_indices(nested.row_count(self.columns))
        self.num_rows = len(self.indices)

    def num_parts(self, indices: Indices, num_parts: int) -> int:
        """Return the number of parts for these units if their env steps alone would be split into `num_parts`."""
        return num_parts

    def are_all(self, indices: Indices) -> bool:
        """Return whether these are all rows of the columns, in order."""
        return indices is self._all

    def rows_in(self, indices: Indices) -> int:
        """Return the number of env steps in these units."""
        return len(indices)

    def row_indices(self, indices: Indices) -> Indices:
        """Return, for each env step of these units, its index among all env steps with a loss."""
        return np.searchsorted(self.indices, indices)

    def for_loss(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Return columns of units in the form that a loss expects."""
        return columns


@lru_cache(maxsize=4)
def _first_indices(num_rows: int) -> Indices:
    """Return 0, 1, ...; cached because most train batches have the same size."""
    return np.arange(num_rows)


class _Sequences(_Units):
    """Sequences (S, L, ...) for a stateful module; see `at_env_steps` for the columns of a loss."""

    def __init__(self, batch: Mapping[str, Any], reads: Sequence[str], inputs: Sequence[str]) -> None:
        self._reads, self._inputs = reads, inputs
        self.columns = {name: batch[name] for name in dict.fromkeys((*inputs, LOSS_MASK, *reads))}
        self._lengths: Indices = batch[LOSS_MASK].sum(1).cpu().numpy()  # env steps of each sequence
        self.indices = np.flatnonzero(self._lengths)  # without sequences that consist of a bootstrap row only
        self.num_rows = int(self._lengths.sum())

    def num_parts(self, indices: Indices, num_parts: int) -> int:
        return num_microbatches(len(indices), num_microbatches(len(indices), num_parts))

    def rows_in(self, indices: Indices) -> int:
        return int(self._lengths[indices].sum())

    def row_indices(self, indices: Indices) -> Indices:
        starts = np.cumsum(self._lengths) - self._lengths
        return np.concatenate([np.arange(starts[one], starts[one] + self._lengths[one]) for one in indices])

    def for_loss(self, columns: dict[str, Any]) -> dict[str, Any]:
        return at_env_steps(columns, self._inputs, self._reads)


@dataclass(slots=True, eq=False)  # one per gradient step; frozen dataclasses take longer to create
class Minibatch:
    """The rows of one gradient step.

    Attributes:
        num_rows: number of env steps.
        num_rows_of_all: number of env steps in the corresponding minibatches of all peers.
        is_last_epoch: whether the pass over the batch is the last one.
    """

    num_rows: int
    num_rows_of_all: int
    is_last_epoch: bool
    _units: _Units
    _indices: Indices
    _sizes: Sequence[int]  # units of each microbatch
    _columns: Sequence[dict[str, Any]]  # of each microbatch

    def microbatches(self) -> Iterator[tuple[dict[str, Any], float]]:
        """Yield the columns for a loss in parts whose gradients add up, and each part's fraction of the rows.

        Without `microbatch_size` there is one part with fraction 1.
        """
        if len(self._columns) == 1:
            yield self._units.for_loss(self._columns[0]), 1.0
            return
        for columns, part in zip(self._columns, _parts(self._indices, self._sizes), strict=True):
            yield self._units.for_loss(columns), self._units.rows_in(part) / self.num_rows

    @property
    def is_in_order(self) -> bool:
        """Whether these are all rows with a loss, in the batch's order."""
        return self._indices is self._units.indices

    def row_indices(self) -> Indices:
        """Return (num_rows,) the index of each row among the batch's rows with a loss."""
        return self._units.row_indices(self._indices)


# The indices of a minibatch's units, and the sizes and columns of its microbatches.
_Gathered = tuple[Indices, list[int], list[dict[str, Any]]]


class Minibatches:
    """Splits the train batches of one module according to `num_epochs`, `minibatching`, `minibatch_size` and
    `microbatch_size`.

    Args:
        module: if it is stateful, it learns from entire sequences.
        loss: determines the columns to gather.
        config: configuration of the algorithm.
        stream: random stream for shuffling.
        device: device of the module.
        collective: learners that take their steps together, and therefore need the same number of minibatches.
    """

    def __init__(
        self,
        module: RLModule,
        loss: Loss,
        config: AlgorithmConfig,
        stream: np.random.Generator,
        device: torch.device,
        collective: Collective,
    ) -> None:
        self._module, self._config = module, config
        self._sequences = (*module.learner_inputs, *loss.sequences) if module.is_stateful else ()
        self._reads = tuple(dict.fromkeys((*loss.reads, *module.learner_inputs)))
        self._stream, self._device, self._collective = stream, device, collective

    def epochs(self, batch: Mapping[str, Any]) -> Iterator[Minibatch]:
        """Yield minibatches of nearly equal size, in `num_epochs` passes over the rows with a loss.

        All learners get the same number of minibatches: 0 if one of them does not have rows. Shuffled rows are gathered
        once per epoch and column. Rows in time order, or in a single minibatch, are gathered once. A minibatch is a
        view.
        """
        units = self._units(batch)
        sizes = self._sizes(units, self._config.minibatch_size)
        if not sizes:
            return
        rows_of_all = None
        if self._collective.num_learners > 1:
            rows_of_all = even_sizes(self._collective.total(units.num_rows), len(sizes))
        is_shuffled = self._config.minibatching == "shuffled" and len(sizes) > 1
        in_order = [] if is_shuffled else list(self._gather(units, units.indices, sizes))
        num_epochs = self._config.num_epochs
        for epoch in range(num_epochs):
            gathered = in_order or self._gather(units, self._stream.permutation(units.indices), sizes)
            for number, (indices, part_sizes, columns) in enumerate(gathered):
                num_rows = units.rows_in(indices)
                num_rows_of_all = num_rows if rows_of_all is None else rows_of_all[number]
                is_last = epoch == num_epochs - 1
                yield Minibatch(num_rows, num_rows_of_all, is_last, units, indices, part_sizes, columns)

    def all_rows(self, batch: Mapping[str, Any]) -> Minibatch | None:
        """Return all rows with a loss as one minibatch, in order, or None if a learner does not have rows."""
        units = self._units(batch)
        sizes = self._sizes(units, None)
        if not sizes:
            return None
        [(indices, part_sizes, columns)] = self._gather(units, units.indices, sizes)
        return Minibatch(units.num_rows, units.num_rows, True, units, indices, part_sizes, columns)

    def _units(self, batch: Mapping[str, Any]) -> _Units:
        if self._module.is_stateful:
            return _Sequences(batch, self._reads, self._sequences)
        return _Units(batch, self._reads)

    def _sizes(self, units: _Units, minibatch_size: int | None) -> list[int]:
        """Return the number of units in each minibatch.

        The peers agree on the largest number of minibatches of any learner, limited so that none of them is empty.
        """
        num_units = len(units.indices)
        num_minibatches_here = num_minibatches(units.num_rows, minibatch_size)
        num_parts = self._collective.most(units.num_parts(units.indices, num_minibatches_here) if num_units else 0)
        fewest_units = -self._collective.most(-num_units)
        return even_sizes(num_units, min(num_parts, fewest_units))

    def _gather(self, units: _Units, indices: Indices, sizes: list[int]) -> Iterator[_Gathered]:
        """Gather these units, and yield minibatches of these numbers of units."""
        if len(sizes) == 1 and self._config.microbatch_size is None and units.are_all(indices):
            yield indices, sizes, [units.columns]
            return
        if len(sizes) == 1 and self._config.microbatch_size is None:
            order = torch.from_numpy(indices).to(self._device)
            yield indices, sizes, [{name: _taken(column, order) for name, column in units.columns.items()}]
            return
        minibatches = _parts(indices, sizes)
        part_sizes = self._microbatch_sizes(units, minibatches)
        order = torch.from_numpy(indices).to(self._device)
        all_sizes = list(chain.from_iterable(part_sizes))
        columns = [_split(column, order, all_sizes) for column in units.columns.values()]
        parts = (dict(zip(units.columns, part, strict=True)) for part in zip(*columns, strict=True))
        for of_one, sizes_of_one in zip(minibatches, part_sizes, strict=True):
            yield of_one, sizes_of_one, [next(parts) for _ in sizes_of_one]

    def _microbatch_sizes(self, units: _Units, minibatches: Sequence[Indices]) -> list[list[int]]:
        limit = self._config.microbatch_size
        if limit is None:
            return [[len(indices)] for indices in minibatches]
        return [
            even_sizes(len(indices), units.num_parts(indices, num_microbatches(units.rows_in(indices), limit)))
            for indices in minibatches
        ]


def _parts(rows: Any, sizes: Sequence[int]) -> list[Any]:
    """Split rows into consecutive views of these sizes."""
    return [nested.take(rows, slice(end - size, end)) for end, size in zip(accumulate(sizes), sizes, strict=True)]


def _taken(column: Any, order: Tensor) -> Any:
    if isinstance(column, Tensor):
        return column.index_select(0, order)
    return nested.map_leaves(lambda leaf: leaf.index_select(0, order), column)


def _split(column: Any, order: Tensor, sizes: list[int]) -> Sequence[Any]:
    """Take the rows `order` of a column, split into blocks of these sizes."""
    if isinstance(column, Tensor):
        return torch.split(_taken(column, order), sizes)
    return _parts(_taken(column, order), sizes)


def at_env_steps(sequences: Mapping[str, Any], inputs: Sequence[str], reads: Sequence[str]) -> dict[str, Any]:
    """Make a minibatch for a stateful module from columns (S, L, ...).

    Columns that the module reads (`inputs`) stay sequences. Other columns of the loss become rows of env steps
    (V, ...), indexed by `step_rows`, so that a loss never sees padding.
    """
    step_rows = sequences[LOSS_MASK].flatten().nonzero().squeeze(-1)
    others = {
        name: nested.map_leaves(partial(rows_at, step_rows), sequences[name]) for name in reads if name not in inputs
    }
    return {**sequences, **others, STEP_ROWS: step_rows}


def num_minibatches(num_rows: int, minibatch_size: int | None) -> int:
    """Return the number of minibatches of about `minibatch_size` rows: `num_rows / minibatch_size`, rounded."""
    return 1 if minibatch_size is None else max(1, (2 * num_rows + minibatch_size) // (2 * minibatch_size))


def num_microbatches(num_rows: int, microbatch_size: int) -> int:
    """Return the smallest number of parts with at most `microbatch_size` rows."""
    return -(-num_rows // microbatch_size)


def even_sizes(num_rows: int, num_parts: int) -> list[int]:
    """Return the row counts of `num_parts` parts, which differ by at most one."""
    return [num_rows // num_parts + (index < num_rows % num_parts) for index in range(num_parts)]
