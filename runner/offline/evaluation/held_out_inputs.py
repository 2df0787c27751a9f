"""What a module reads of recorded episodes: their observations through the pipelines, as when it acts and learns.

Dimension letters: E episodes, R steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.config.errors import ConfigError, Problem
from runner.episodes import nested
from runner.episodes.columns import ColumnBlock
from runner.modules.rl_module import RLModule
from runner.pipelines.connector import STATE_IN, Connector
from runner.pipelines.learner_connectors import AddOneTsToEpisodesAndTruncate
from runner.pipelines.pipeline import LearnerConnectorPipeline
from runner.pipelines.recorded_episodes import MEMORY_CONNECTORS


def inputs_pipeline(learner: LearnerConnectorPipeline, module: RLModule) -> LearnerConnectorPipeline:
    """Return the part of a learner pipeline that makes what the module reads, a row for each of R + E observations.

    Left out are connectors that compute with the module, that cut sequences, or that need columns of such connectors.

    Raises:
        ConfigError: one of them writes what the module reads.
    """
    connectors: list[Connector] = []
    if not any(isinstance(connector, AddOneTsToEpisodesAndTruncate) for connector in learner.single_connectors()):
        connectors.append(AddOneTsToEpisodesAndTruncate())
    available = {column for connector in connectors for column in connector.writes}
    for connector in learner.single_connectors():
        if (
            connector.reads_module
            or isinstance(connector, MEMORY_CONNECTORS)
            or not available.issuperset(connector.reads)
        ):
            continue
        connectors.append(connector)
        available.update(connector.writes)
    missing = [name for name in module.inputs if name != STATE_IN and name not in available]
    if missing:
        what = f"the module reads {', '.join(missing)}, which takes the module itself to compute"
        allowed = "evaluation.offline_evaluation_type=eval_loss"
        raise ConfigError([Problem(what, "connectors.learner, algorithm.learner_pipeline", allowed=allowed)])
    return LearnerConnectorPipeline(connectors, *learner.input_spaces)


def writable(block: ColumnBlock) -> ColumnBlock:
    """Return the block with arrays that may be written to: torch has no notion of others, such as Arrow's."""
    return replace(block, columns={name: nested.map_leaves(_writable, rows) for name, rows in block.columns.items()})


def _writable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.require(array, requirements="W")
