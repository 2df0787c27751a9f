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
from runner.pipelines.learner_pieces import AddOneTsToEpisodesAndTruncate
from runner.pipelines.piece import STATE_IN, ConnectorPiece
from runner.pipelines.pipeline import LearnerConnectorPipeline
from runner.pipelines.recorded_episodes import MEMORY_PIECES


def inputs_pipeline(learner: LearnerConnectorPipeline, module: RLModule) -> LearnerConnectorPipeline:
    """Return the part of a learner pipeline that makes what the module reads, a row for each of R + E observations.

    Left out are pieces that compute with the module, that cut sequences, or that need columns of such pieces.

    Raises:
        ConfigError: one of them writes what the module reads.
    """
    pieces: list[ConnectorPiece] = []
    if not any(isinstance(piece, AddOneTsToEpisodesAndTruncate) for piece in learner.single_pieces()):
        pieces.append(AddOneTsToEpisodesAndTruncate())
    available = {column for piece in pieces for column in piece.writes}
    for piece in learner.single_pieces():
        if piece.reads_module or isinstance(piece, MEMORY_PIECES) or not available.issuperset(piece.reads):
            continue
        pieces.append(piece)
        available.update(piece.writes)
    missing = [name for name in module.inputs if name != STATE_IN and name not in available]
    if missing:
        what = f"the module reads {', '.join(missing)}, which takes the module itself to compute"
        allowed = "evaluation.offline_evaluation_type=eval_loss"
        raise ConfigError([Problem(what, "connectors.learner, algorithm.learner_pipeline", allowed=allowed)])
    return LearnerConnectorPipeline(pieces, *learner.input_spaces)


def writable(block: ColumnBlock) -> ColumnBlock:
    """Return the block with arrays that may be written to: torch has no notion of others, such as Arrow's."""
    return replace(block, columns={name: nested.map_leaves(_writable, rows) for name, rows in block.columns.items()})


def _writable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.require(array, requirements="W")
