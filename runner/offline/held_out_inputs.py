"""What a module reads of recorded episodes: their observations through the pipelines, as when it acts and learns.

Dimension letters: E episodes, R steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.config.errors import ConfigError, Problem
from runner.episodes import SingleAgentEpisode, nested
from runner.episodes.columns import OBS, Column, ColumnBlock
from runner.modules.rl_module import RLModule
from runner.pipelines.learner_pieces import AddOneTsToEpisodesAndTruncate
from runner.pipelines.memory_pieces import AddStatesFromEpisodesToBatch, AddTimeDimToBatchAndZeroPad
from runner.pipelines.piece import STATE_IN, ConnectorPiece
from runner.pipelines.pipeline import EnvToModulePipeline, LearnerConnectorPipeline

_MEMORY_PIECES = (AddTimeDimToBatchAndZeroPad, AddStatesFromEpisodesToBatch)


class ObservationRows(Sequence[SingleAgentEpisode]):
    """Every observation of a block as the newest one of a running episode: what env-to-module pieces are given.

    Args:
        block: whole episodes, R + E observations.

    Attributes:
        written_obs: (R + E, ...) what a piece let the episodes hold instead; None if none did.
    """

    def __init__(self, block: ColumnBlock) -> None:
        self._block = block
        self.written_obs: Column | None = None

    @property
    def current_obs(self) -> Column:
        """(R + E, ...)."""
        return self._block.columns[OBS]

    def history(self, column: str, length: int) -> tuple[Column, npt.NDArray[np.bool_]]:
        """(R + E, length, ...) what was seen or done before, and (R + E, length) whether there was any."""
        return self._block.history(column, length)

    def write_obs(self, obs: Column) -> None:
        """Let the episodes hold `obs` (R + E, ...)."""
        self.written_obs = obs

    def __len__(self) -> int:
        return self._block.num_rows + len(self._block)

    def __iter__(self) -> Iterator[SingleAgentEpisode]:
        for episode in self._block:
            yield from (episode[:t] for t in range(len(episode) + 1))

    def __getitem__(self, index: int) -> SingleAgentEpisode:  # type: ignore[override]
        chunk = int(np.searchsorted(self._block.first_obs_rows, index, side="right")) - 1
        return self._block[chunk][: index - int(self._block.first_obs_rows[chunk])]


def with_held_observations(block: ColumnBlock, pipeline: EnvToModulePipeline, module: RLModule) -> ColumnBlock:
    """The block with the observations that the policy's own episodes would hold.

    Recorded are those of the environment; a mean-std filter, for example, writes others to the episodes.
    """
    pieces = [piece for piece in pipeline if not isinstance(piece, _MEMORY_PIECES)]
    while pieces and not pieces[-1].writes_obs_to_episodes:
        del pieces[-1]
    rows, batch, shared_data = ObservationRows(block), {}, {}  # type: ignore[var-annotated]
    for piece in pieces:
        batch = piece(rl_module=module, batch=batch, episodes=rows, explore=True, shared_data=shared_data)
    if rows.written_obs is None:
        return block
    return replace(block, columns={**block.columns, OBS: rows.written_obs})


def inputs_pipeline(learner: LearnerConnectorPipeline, module: RLModule) -> LearnerConnectorPipeline:
    """The part of a learner pipeline that makes what the module reads, a row for each of R + E observations.

    Left out are pieces that compute with the module, those that cut sequences, and those that need what these write.

    Raises:
        ConfigError: one of them writes what the module reads.
    """
    pieces: list[ConnectorPiece] = []
    if not any(isinstance(piece, AddOneTsToEpisodesAndTruncate) for piece in learner):
        pieces.append(AddOneTsToEpisodesAndTruncate())
    available = {column for piece in pieces for column in piece.writes}
    for piece in learner:
        if piece.reads_module or isinstance(piece, _MEMORY_PIECES) or not available.issuperset(piece.reads):
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
    """The block with arrays that may be written to: torch has no notion of others, such as Arrow's."""
    return replace(block, columns={name: nested.map_leaves(_writable, own) for name, own in block.columns.items()})


def _writable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.require(array, requirements="W")
