"""Compute an algorithm's loss on held-out data, and the inputs of a module from recorded episodes.

Dimension letters: E episodes, R steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runner.config.errors import ConfigError, Problem
from runner.episodes import nested
from runner.episodes.columns import ColumnBlock
from runner.learners.loss import Loss
from runner.learners.minibatches import at_env_steps
from runner.modules.rl_module import RLModule
from runner.pipelines.connector import IS_FIRST, LOSS_MASK, STATE_IN, Connector
from runner.pipelines.learner_connectors import AddOneTsToEpisodesAndTruncate
from runner.pipelines.pipeline import LearnerConnectorPipeline
from runner.pipelines.recorded_episodes import MEMORY_CONNECTORS
from runner.pipelines.requirements import Requirements


def inputs_pipeline(learner: LearnerConnectorPipeline, module: RLModule) -> LearnerConnectorPipeline:
    """Return the connectors of a learner pipeline that compute the module's inputs for R + E observations.

    Connectors that use the module, cut sequences, or need columns of such connectors are left out.

    Raises:
        ConfigError: a connector that is left out writes an input of the module.
    """
    connectors: list[Connector] = []
    if not any(isinstance(connector, AddOneTsToEpisodesAndTruncate) for connector in learner.single_connectors()):
        connectors.append(AddOneTsToEpisodesAndTruncate())
    available = {column for connector in connectors for column in Requirements.of(connector).writes}
    for connector in learner.single_connectors():
        requires, is_memory = Requirements.of(connector), isinstance(connector, MEMORY_CONNECTORS)
        if requires.reads_module or is_memory or not available.issuperset(requires.reads):
            continue
        connectors.append(connector)
        available.update(requires.writes)
    missing = [name for name in module.learner_inputs if name not in (STATE_IN, IS_FIRST, *available)]
    if missing:
        what = f"the module reads {', '.join(missing)}, which only connectors that use the module compute"
        fix = "set evaluation.offline_evaluation_type=eval_loss"
        raise ConfigError([Problem(what, "connectors.learner, algorithm.learner_pipeline", fix=fix)])
    return LearnerConnectorPipeline(connectors, *learner.input_spaces)


def writable(block: ColumnBlock) -> ColumnBlock:
    """Return the block with writable arrays; torch does not support read-only ones, such as Arrow's."""
    return replace(block, columns={name: nested.map_leaves(_writable, rows) for name, rows in block.columns.items()})


def _writable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.require(array, requirements="W")


_MAX_ROWS_PER_PASS = 4096  # limits the memory of a pass; the mean does not depend on it


class MeanLoss:
    """Mean of `total_loss` over the env steps of all blocks so far. Nothing is updated.

    Args:
        module: module on the learner's device, in eval mode.
        loss: loss with the coefficients of the training.
        pipeline: makes the train batch. Connectors that use all rows, such as standardised advantages, see one block
            at a time.
    """

    def __init__(self, module: RLModule, loss: Loss, pipeline: LearnerConnectorPipeline) -> None:
        self._module, self._loss, self._pipeline = module, loss, pipeline
        self._sum = 0.0
        self._num_env_steps = 0

    @property
    def mean(self) -> float:
        """Mean so far, or NaN before the first env step."""
        return self._sum / self._num_env_steps if self._num_env_steps else float("nan")

    @torch.no_grad()
    def add(self, block: ColumnBlock) -> None:
        """Add the env steps of some episodes."""
        modules = {block.module_id: self._module}
        batch = self._pipeline(rl_module=modules, batch={}, episodes=block, shared_data={})[block.module_id]
        for part, num_env_steps in self._parts(batch):
            self._sum += float(self._loss(self._module, part, False).total_loss) * num_env_steps
            self._num_env_steps += num_env_steps

    def _parts(self, batch: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield minibatches like a learner's, in order, each with its number of env steps."""
        module, reads = self._module, self._loss.reads
        if not module.is_stateful:
            columns = {name: batch[name] for name in reads}
            mask: Tensor | None = batch.get(LOSS_MASK)
            rows = torch.arange(nested.row_count(columns)) if mask is None else mask.nonzero().squeeze(-1)
            yield from ((_rows(columns, chosen), len(chosen)) for chosen in torch.split(rows, _MAX_ROWS_PER_PASS))
            return
        columns = {name: batch[name] for name in dict.fromkeys((*module.learner_inputs, LOSS_MASK, *reads))}
        num_steps: Tensor = batch[LOSS_MASK].sum(1)
        sequences, longest = num_steps.nonzero().squeeze(-1), batch[LOSS_MASK].shape[1]
        for chosen in torch.split(sequences, max(1, _MAX_ROWS_PER_PASS // longest)):
            yield at_env_steps(_rows(columns, chosen), module.learner_inputs, reads), int(num_steps[chosen].sum())


def _rows(columns: dict[str, Any], rows: Tensor) -> dict[str, Any]:
    def taken(leaf: Tensor) -> Tensor:
        return leaf.index_select(0, rows.to(leaf.device))

    return {name: nested.map_leaves(taken, column) for name, column in columns.items()}
