"""Env-to-module pipelines over recorded episodes: the observations that the policy would have seen.

Dimension letters: E episodes, R steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from runner.episodes import SingleAgentEpisode, nested
from runner.episodes.columns import OBS, REWARDS, Column, ColumnBlock
from runner.modules.rl_module import RLModule
from runner.pipelines.connector import Batch, Connector
from runner.pipelines.memory_connectors import AddStatesFromEpisodesToBatch, AddTimeDimToBatchAndZeroPad
from runner.pipelines.noise_connectors import AddNoiseToBatch
from runner.pipelines.pipeline import EnvToModulePipeline
from runner.pipelines.requirements import Requirements
from runner.rows.running_episodes import RunningEpisodes

MEMORY_CONNECTORS = (AddTimeDimToBatchAndZeroPad, AddStatesFromEpisodesToBatch)
# Default connectors that do not change observations.
ACTING_CONNECTORS = (*MEMORY_CONNECTORS, AddNoiseToBatch)


class ObservationRows(RunningEpisodes):
    """Presents each observation of a block to env-to-module connectors as if it were the newest of its episode.

    Args:
        block: complete episodes, R + E observations.

    Attributes:
        written_obs: (R + E, ...) observations that a connector wrote to the episodes, or None.
    """

    def __init__(self, block: ColumnBlock) -> None:
        self._block = block
        self.max_rows = block.num_rows + len(block)
        self.written_obs: Column | None = None

    @property
    def current_obs(self) -> Column:
        """The observations (R + E, ...)."""
        return self._block.columns[OBS]

    @property
    def starts_episode(self) -> npt.NDArray[np.bool_]:
        """Whether (R + E,) the observation is the first of its episode."""
        _, is_there = self._block.history(REWARDS, 1)
        return ~is_there[:, 0]

    def newest_step(self, column: str) -> Column | None:
        """Return the steps (R + E, ...) before the observations, 0 for the first ones."""
        if column not in self._block.columns:
            return None
        values, _ = self._block.history(column, 1)
        return nested.take(values, (slice(None), 0))

    def history(self, column: str, length: int) -> tuple[Column, npt.NDArray[np.bool_]]:
        """Return (R + E, length, ...) past values, and (R + E, length) whether they exist."""
        return self._block.history(column, length)

    def write_obs(self, obs: Column) -> None:
        """Store `obs` (R + E, ...) as the observations of the episodes."""
        self.written_obs = obs

    def __len__(self) -> int:
        return self.max_rows

    def __iter__(self) -> Iterator[SingleAgentEpisode]:
        for episode in self._block:
            yield from (episode[:t] for t in range(len(episode) + 1))

    def __getitem__(self, index: int) -> SingleAgentEpisode:  # type: ignore[override]
        chunk = int(np.searchsorted(self._block.first_obs_rows, index, side="right")) - 1
        return self._block[chunk][: index - int(self._block.first_obs_rows[chunk])]


def with_held_observations(block: ColumnBlock, pipeline: EnvToModulePipeline, module: RLModule) -> ColumnBlock:
    """Replace a block's observations by the observations that the policy's episodes would hold.

    Recorded data contains the environment's observations, but a mean-std filter, for example, writes different ones to
    the episodes.
    """
    connectors = list(pipeline.single_connectors())
    while connectors and not Requirements.of(connectors[-1]).writes_obs_to_episodes:
        del connectors[-1]
    _, written_obs = pass_through(connectors, block, module)
    return block if written_obs is None else block.with_columns({OBS: written_obs})


def pass_through(
    connectors: Iterable[Connector], block: ColumnBlock, module: RLModule, batch: Batch | None = None
) -> tuple[Batch, Column | None]:
    """Apply env-to-module connectors to every observation of a block, without a time axis, states and noise.

    Args:
        connectors: called in order, except those for stateful modules and noisy layers.
        block: R + E observations.
        module: passed to the connectors as `rl_module`.
        batch: initial columns (R + E, ...).

    Returns:
        The batch, (R + E, ...) each, and the observations that a connector wrote to the episodes, or None.
    """
    rows, batch, shared_data = ObservationRows(block), batch or {}, {}  # type: ignore[var-annotated]
    for connector in connectors:
        if not isinstance(connector, ACTING_CONNECTORS):
            batch = connector(rl_module=module, batch=batch, episodes=rows, explore=True, shared_data=shared_data)
    return batch, rows.written_obs
