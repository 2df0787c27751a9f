"""The column block: the rows of many episode chunks as one contiguous array a column.

Arrow's list layout. R rows of E episode chunks lie one chunk after the other; a step column has R rows, `obs` has one
row more per chunk (the observation after its last step), so R + E rows. An episode is a slice of it, without a copy.
Dimension letters: T time, N sub-environments, R rows, E episode chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from runner.episodes.single_agent_episode import SingleAgentEpisode

Array = npt.NDArray[Any]

OBS = "obs"
ACTIONS = "actions"
REWARDS = "rewards"
# Columns with the meaning an episode gives them; every other column is an extra model output.
EPISODE_COLUMNS = (OBS, ACTIONS, REWARDS)


class Lookback(Protocol):
    """The steps just before the chunks of a block."""

    def num_steps_before(self, chunk: int) -> int:
        """How many steps before the chunk can be seen."""

    def columns_before(self, chunk: int) -> Mapping[str, Array]:
        """These steps, column by column; `obs` has as many rows as the others."""


class InfoRows(Protocol):
    """The infos of a block."""

    def rows_of(self, chunk: int, num_before: int, num_rows: int) -> list[dict[str, Any]] | None:
        """`num_rows` infos of the chunk's observations, preceded by `num_before` empty ones; None: all empty."""


@dataclass(frozen=True, eq=False)
class ColumnBlock(Sequence[SingleAgentEpisode]):
    """E episode chunks, columns first; as a sequence, its items are `SingleAgentEpisode` views made on demand.

    Attributes:
        columns: name -> array. `obs` (R + E, ...); every other column (R, ...).
        lengths: (E,) int64, env steps of each chunk.
        is_terminated: (E,) bool, the chunk ends in a terminal state.
        is_truncated: (E,) bool, the chunk ends because a limit was reached.
        t_started: (E,) int64, the time step within its episode at which the chunk starts.
        episode_ids: E ids; chunks of one episode share theirs.
        lookback: the steps just before chunks that continue an episode.
        infos: what the environment returned as info, where that was not empty.
    """

    columns: Mapping[str, Array]
    lengths: npt.NDArray[np.int64]
    is_terminated: npt.NDArray[np.bool_]
    is_truncated: npt.NDArray[np.bool_]
    t_started: npt.NDArray[np.int64]
    episode_ids: Sequence[str]
    lookback: Lookback | None = None
    infos: InfoRows | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def num_rows(self) -> int:
        """R, the env steps in this block."""
        return int(self.lengths.sum())

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """(E + 1,) row at which each chunk starts in the step columns; in `obs` chunk e starts at offsets[e] + e."""
        return np.concatenate(([0], np.cumsum(self.lengths)))

    @property
    def extra_columns(self) -> list[str]:
        """Names of the extra model outputs."""
        return [name for name in self.columns if name not in EPISODE_COLUMNS]

    def __getitem__(self, index: int) -> SingleAgentEpisode:  # type: ignore[override]
        if not isinstance(index, (int, np.integer)):
            raise TypeError(f"a column block is indexed by the number of an episode chunk, got {index!r}")
        if not -len(self) <= index < len(self):
            raise IndexError(f"episode chunk {index} of a block of {len(self)}")
        chunk = int(index) % len(self)
        start = int(self.lengths[:chunk].sum())
        return self._view(chunk, start)

    def __iter__(self) -> Iterator[SingleAgentEpisode]:
        start = 0
        for chunk, length in enumerate(self.lengths.tolist()):
            yield self._view(chunk, start)
            start += length

    def _view(self, chunk: int, start: int) -> SingleAgentEpisode:
        length = int(self.lengths[chunk])
        rows = slice(start, start + length)
        obs_rows = slice(start + chunk, start + chunk + length + 1)
        columns = {name: column[obs_rows if name == OBS else rows] for name, column in self.columns.items()}
        num_past = self.lookback.num_steps_before(chunk) if self.lookback else 0
        if self.lookback and num_past:  # the only case that copies: past and present rows lie in different arrays
            past = self.lookback.columns_before(chunk)
            columns = {name: np.concatenate((past[name], column)) for name, column in columns.items()}
        return SingleAgentEpisode.from_columns(
            id_=self.episode_ids[chunk],
            observations=columns.pop(OBS),
            actions=columns.pop(ACTIONS),
            rewards=columns.pop(REWARDS),
            extra_model_outputs=columns,
            infos=self.infos.rows_of(chunk, num_past, length + 1) if self.infos else None,
            terminated=bool(self.is_terminated[chunk]),
            truncated=bool(self.is_truncated[chunk]),
            t_started=int(self.t_started[chunk]),
            len_lookback_buffer=num_past,
        )

    def last_row_mask(self) -> npt.NDArray[np.bool_]:
        """(R,) bool, true at the last row of each chunk."""
        mask = np.zeros(self.num_rows, np.bool_)
        mask[self.offsets[1:] - 1] = True
        return mask


def concat_blocks(blocks: Sequence[ColumnBlock]) -> ColumnBlock:
    """One block with the chunks of all `blocks`, in order; a single block is returned as it is."""
    if len(blocks) == 1:
        return blocks[0]
    if not blocks:
        raise ValueError("no column blocks to concatenate")
    return ColumnBlock(
        columns={name: np.concatenate([block.columns[name] for block in blocks]) for name in blocks[0].columns},
        lengths=np.concatenate([block.lengths for block in blocks]),
        is_terminated=np.concatenate([block.is_terminated for block in blocks]),
        is_truncated=np.concatenate([block.is_truncated for block in blocks]),
        t_started=np.concatenate([block.t_started for block in blocks]),
        episode_ids=[id_ for block in blocks for id_ in block.episode_ids],
        lookback=_ConcatenatedRows(blocks),
        infos=_ConcatenatedRows(blocks),
    )


class _ConcatenatedRows:
    """Lookback and infos of concatenated blocks: asks the block that a chunk came from."""

    def __init__(self, blocks: Sequence[ColumnBlock]) -> None:
        self._parts = [(block.lookback, block.infos) for block in blocks]
        self._first_chunk = np.cumsum([0, *(len(block) for block in blocks)])

    def _part(self, chunk: int) -> tuple[Lookback | None, InfoRows | None, int]:
        index = int(np.searchsorted(self._first_chunk, chunk, side="right")) - 1
        return *self._parts[index], chunk - int(self._first_chunk[index])

    def num_steps_before(self, chunk: int) -> int:
        lookback, _, local = self._part(chunk)
        return lookback.num_steps_before(local) if lookback else 0

    def columns_before(self, chunk: int) -> Mapping[str, Array]:
        lookback, _, local = self._part(chunk)
        return lookback.columns_before(local) if lookback else {}

    def rows_of(self, chunk: int, num_before: int, num_rows: int) -> list[dict[str, Any]] | None:
        _, infos, local = self._part(chunk)
        return infos.rows_of(local, num_before, num_rows) if infos else None


def block_from_episodes(episodes: Sequence[SingleAgentEpisode]) -> ColumnBlock:
    """A column block with the rows of `episodes` (one copy a column); a block is returned as it is.

    Raises:
        ValueError: there is no episode, or one has no step or not the same extra model outputs as the others.
    """
    if isinstance(episodes, ColumnBlock):
        return episodes
    if not episodes:
        raise ValueError("no episodes to make a column block of")
    for episode in episodes:
        if len(episode) == 0:
            raise ValueError(f"episode {episode.id_} has no step; a column block holds chunks of at least one")
    extra = list(episodes[0].extra_model_outputs)
    for episode in episodes:
        if set(episode.extra_model_outputs) != set(extra):
            got = sorted(episode.extra_model_outputs)
            raise ValueError(f"episode {episode.id_} has the extra model outputs {got}, others have {sorted(extra)}")
    columns = {
        OBS: np.concatenate([np.asarray(episode.get_observations()) for episode in episodes]),
        ACTIONS: np.concatenate([np.asarray(episode.get_actions()) for episode in episodes]),
        REWARDS: np.concatenate([np.asarray(episode.get_rewards(), np.float32) for episode in episodes]),
    }
    columns |= {
        key: np.concatenate([np.asarray(episode.get_extra_model_outputs(key)) for episode in episodes]) for key in extra
    }
    return ColumnBlock(
        columns=columns,
        lengths=np.array([len(episode) for episode in episodes], np.int64),
        is_terminated=np.array([episode.is_terminated for episode in episodes], np.bool_),
        is_truncated=np.array([episode.is_truncated for episode in episodes], np.bool_),
        t_started=np.array([episode.t_started for episode in episodes], np.int64),
        episode_ids=[episode.id_ for episode in episodes],
    )
