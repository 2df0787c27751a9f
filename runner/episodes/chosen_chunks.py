"""Some of the episode chunks of a column block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.episodes import nested
from runner.episodes.columns import OBS, Agents, ColumnBlock, InfoRows, row_ranges

IntArray = npt.NDArray[np.int64]


def take_chunks(block: ColumnBlock, chunks: Sequence[int] | IntArray) -> ColumnBlock:
    """Return a block of these chunks, in this order, without lookback; all of them in their order are the block itself.

    Args:
        block: of E chunks.
        chunks: their numbers.
    """
    numbers = np.asarray(chunks, np.int64)
    if np.array_equal(numbers, np.arange(len(block))) and block.lookback is None:
        return block
    lengths = block.lengths[numbers]
    rows = row_ranges(block.offsets[numbers], lengths)
    obs_rows = row_ranges(block.first_obs_rows[numbers], lengths + 1)
    chosen = numbers.tolist()
    rows_of = {name: obs_rows if name == OBS else rows for name in block.columns}
    agents = block.agents
    if agents is not None:
        agents = Agents(
            [agents.agent_ids[chunk] for chunk in chosen],
            [agents.multi_agent_episode_ids[chunk] for chunk in chosen],
            agents.env_t[obs_rows],
        )
    return replace(
        block,
        columns={name: nested.take(column, rows_of[name]) for name, column in block.columns.items()},
        lengths=lengths,
        is_terminated=block.is_terminated[numbers],
        is_truncated=block.is_truncated[numbers],
        t_started=block.t_started[numbers],
        episode_ids=[block.episode_ids[chunk] for chunk in chosen],
        lookback=None,
        last_lookback=None,
        infos=None if block.infos is None else _ChosenInfos(block.infos, chosen),
        agents=agents,
        tasks=None if block.tasks is None else [block.tasks[chunk] for chunk in chosen],
    )


@dataclass(frozen=True)
class _ChosenInfos:
    """The infos of some chunks."""

    infos: InfoRows
    chunks: Sequence[int]

    def rows_of(self, chunk: int, num_before: int, num_rows: int) -> list[dict[str, Any]] | None:
        return self.infos.rows_of(self.chunks[chunk], num_before, num_rows)
