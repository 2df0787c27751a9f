"""The column block: the rows of many episode chunks as one contiguous array a column.

Arrow's list layout. R rows of E episode chunks lie one chunk after the other; a step column has R rows, `obs` has one
row more per chunk (the observation after its last step), so R + E rows. An episode is a slice of it, without a copy.
Dimension letters: T time, N sub-environments, R rows, E episode chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from runner.episodes import nested
from runner.episodes.single_agent_episode import SingleAgentEpisode

Array = npt.NDArray[Any]
# An array (rows, ...), or a dict or tuple of columns with the structure of a Dict or Tuple space.
Column = Any

DEFAULT_MODULE_ID = "default_policy"
OBS = "obs"
ACTIONS = "actions"
REWARDS = "rewards"
# Columns with the meaning an episode gives them; every other column is an extra model output.
EPISODE_COLUMNS = (OBS, ACTIONS, REWARDS)


class Lookback(Protocol):
    """The steps just before the chunks of a block."""

    def num_steps_before(self, chunk: int) -> int:
        """Return how many steps before the chunk can be seen."""

    def columns_before(self, chunk: int) -> Mapping[str, Column]:
        """Return these steps, column by column; `obs` has as many rows as the others."""


class InfoRows(Protocol):
    """The infos of a block."""

    def rows_of(self, chunk: int, num_before: int, num_rows: int) -> list[dict[str, Any]] | None:
        """Return `num_rows` infos of the chunk's observations, preceded by `num_before` empty ones; None: all empty."""


@dataclass(frozen=True)
class Agents:
    """Of each of E chunks: the agent that acted and the env episode it belongs to."""

    agent_ids: Sequence[str]
    multi_agent_episode_ids: Sequence[str]
    env_t: npt.NDArray[np.int64]  # (R + E,) env time step of each observation


@dataclass(frozen=True, eq=False)
class ColumnBlock(Sequence[SingleAgentEpisode]):
    """E episode chunks, columns first; as a sequence, its items are `SingleAgentEpisode` views made on demand.

    Attributes:
        columns: name -> array, or nested arrays. `obs` (R + E, ...); every other column (R, ...).
        lengths: (E,) int64, env steps of each chunk.
        is_terminated: (E,) bool, the chunk ends in a terminal state.
        is_truncated: (E,) bool, the chunk ends because a limit was reached.
        t_started: (E,) int64, the time step within its episode at which the chunk starts.
        episode_ids: E ids; chunks of one episode share theirs.
        lookback: the steps just before chunks that continue an episode.
        infos: what the environment returned as info, where that was not empty.
        module_id: the module that acted.
        agents: whose chunks these are, in runs with several agents.
    """

    columns: Mapping[str, Column]
    lengths: npt.NDArray[np.int64]
    is_terminated: npt.NDArray[np.bool_]
    is_truncated: npt.NDArray[np.bool_]
    t_started: npt.NDArray[np.int64]
    episode_ids: Sequence[str]
    lookback: Lookback | None = None
    infos: InfoRows | None = None
    module_id: str = DEFAULT_MODULE_ID
    agents: Agents | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def num_rows(self) -> int:
        """R, the env steps in this block."""
        return int(self.lengths.sum())

    @cached_property
    def offsets(self) -> npt.NDArray[np.int64]:
        """(E + 1,) row at which each chunk starts in the step columns; in `obs` chunk e starts at offsets[e] + e."""
        offsets = np.zeros(len(self.lengths) + 1, np.int64)
        np.cumsum(self.lengths, out=offsets[1:])
        return offsets

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
        columns = {
            name: nested.take(column, obs_rows if name == OBS else rows) for name, column in self.columns.items()
        }
        episode = SingleAgentEpisode.from_columns(
            id_=self.episode_ids[chunk],
            observations=columns.pop(OBS),
            actions=columns.pop(ACTIONS),
            rewards=columns.pop(REWARDS),
            extra_model_outputs=columns,
            infos=self.infos.rows_of(chunk, 0, length + 1) if self.infos else None,
            terminated=bool(self.is_terminated[chunk]),
            truncated=bool(self.is_truncated[chunk]),
            t_started=int(self.t_started[chunk]),
            agent_id=self.agents.agent_ids[chunk] if self.agents else None,
            module_id=self.module_id if self.agents else None,
        )
        if self.lookback and self.lookback.num_steps_before(chunk):  # copies: past and present lie in different arrays
            episode.join_lookback(self.lookback.columns_before(chunk))
        if self.agents:
            episode.multi_agent_episode_id = self.agents.multi_agent_episode_ids[chunk]
        return episode

    @property
    def first_obs_rows(self) -> npt.NDArray[np.int64]:
        """(E,) row of each chunk's first observation in `obs`."""
        return self.offsets[:-1] + np.arange(len(self))

    def history(self, column: str, length: int) -> tuple[Column, npt.NDArray[np.bool_]]:
        """Return what the agent had seen or done at each of the R + E observations.

        Args:
            column: `obs`: up to the row's own observation; or a step column: the steps before that observation.
            length: of the history; rows at a chunk's start reach into its lookback.

        Returns:
            (R + E, length, ...) values, oldest first, and (R + E, length) whether each lies within the episode and is
            still to be seen; values are 0 where not.
        """
        is_obs = column == OBS
        num_rows = self.num_rows + len(self)
        chunk = np.repeat(np.arange(len(self)), self.lengths + 1)
        local = np.arange(num_rows) - self.first_obs_rows[chunk]
        back = np.arange(length - 1, -1, -1) if is_obs else np.arange(length, 0, -1)
        steps_back = local[:, None] - back  # (R + E, length) row within the chunk, negative in its lookback
        is_there = steps_back >= 0
        first = (self.first_obs_rows if is_obs else self.offsets[:-1])[chunk]
        rows = np.where(is_there, first[:, None] + steps_back, 0)

        def gather(array: Array) -> Array:
            values = array[rows] if len(array) else np.zeros((*rows.shape, *array.shape[1:]), array.dtype)
            values[~is_there] = 0
            return values

        values = nested.map_leaves(gather, self.columns[column])
        self._add_lookback(column, values, is_there, steps_back)
        return values, is_there

    def _add_lookback(self, column: str, values: Column, is_there: Array, steps_back: Array) -> None:
        """Fill in what lies in the lookback of the chunks that have one."""
        if self.lookback is None:
            return
        for chunk, start in enumerate(self.first_obs_rows.tolist()):
            num_past = self.lookback.num_steps_before(chunk)
            if num_past == 0:
                continue
            past = self.lookback.columns_before(chunk)[column]
            chunk_rows = slice(start, start + min(int(self.lengths[chunk]) + 1, is_there.shape[1]))
            row, place = np.nonzero((steps_back[chunk_rows] < 0) & (steps_back[chunk_rows] >= -num_past))
            from_past = nested.take(past, steps_back[chunk_rows][row, place] + num_past)
            nested.assign(values, (start + row, place), from_past)
            is_there[start + row, place] = True

    def last_row_mask(self) -> npt.NDArray[np.bool_]:
        """Return (R,) bool, true at the last row of each chunk."""
        mask = np.zeros(self.num_rows, np.bool_)
        mask[self.offsets[1:] - 1] = True
        return mask


@dataclass(frozen=True)
class Rollout:
    """What was sampled: a block for each module that acted, and the env steps that it took.

    Attributes:
        leave_out: what `rllink.leave_out` has to be so that `resume` goes on without it; empty if it is not repeated.
        whole: the blocks that `blocks` are parts of, for pieces that read other agents' rows; None: it is no part.
    """

    blocks: Mapping[str, ColumnBlock]
    num_env_steps: int
    leave_out: tuple[str, ...] = ()
    whole: Mapping[str, ColumnBlock] | None = None


def concat_rollouts(rollouts: Sequence[Rollout]) -> Rollout:
    """Return one rollout with the chunks of all, module by module; a single one is returned as it is."""
    if len(rollouts) == 1:
        return rollouts[0]
    modules = dict.fromkeys(module_id for rollout in rollouts for module_id in rollout.blocks)
    blocks = {
        module_id: concat_blocks([rollout.blocks[module_id] for rollout in rollouts if module_id in rollout.blocks])
        for module_id in modules
    }
    leave_out = dict.fromkeys(name for rollout in rollouts for name in rollout.leave_out)
    return Rollout(blocks, sum(rollout.num_env_steps for rollout in rollouts), tuple(leave_out))


def concat_blocks(blocks: Sequence[ColumnBlock]) -> ColumnBlock:
    """Return one block with the chunks of all `blocks`, in order; a single block is returned as it is."""
    if len(blocks) == 1:
        return blocks[0]
    if not blocks:
        raise ValueError("no column blocks to concatenate")
    return ColumnBlock(
        columns={name: nested.concatenate([block.columns[name] for block in blocks]) for name in blocks[0].columns},
        lengths=np.concatenate([block.lengths for block in blocks]),
        is_terminated=np.concatenate([block.is_terminated for block in blocks]),
        is_truncated=np.concatenate([block.is_truncated for block in blocks]),
        t_started=np.concatenate([block.t_started for block in blocks]),
        episode_ids=[id_ for block in blocks for id_ in block.episode_ids],
        lookback=_ConcatenatedRows(blocks) if any(block.lookback for block in blocks) else None,
        infos=_ConcatenatedRows(blocks) if any(block.infos for block in blocks) else None,
        module_id=blocks[0].module_id,
        agents=_concatenated_agents(blocks),
    )


def _concatenated_agents(blocks: Sequence[ColumnBlock]) -> Agents | None:
    parts = [block.agents for block in blocks if block.agents is not None]
    if len(parts) < len(blocks):
        return None
    return Agents(
        [agent for part in parts for agent in part.agent_ids],
        [id_ for part in parts for id_ in part.multi_agent_episode_ids],
        np.concatenate([part.env_t for part in parts]),
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

    def columns_before(self, chunk: int) -> Mapping[str, Column]:
        lookback, _, local = self._part(chunk)
        return lookback.columns_before(local) if lookback else {}

    def rows_of(self, chunk: int, num_before: int, num_rows: int) -> list[dict[str, Any]] | None:
        _, infos, local = self._part(chunk)
        return infos.rows_of(local, num_before, num_rows) if infos else None


def take_chunks(block: ColumnBlock, start: int) -> ColumnBlock:
    """Return the chunks from number `start` on, as views; without lookback."""
    first_row = int(block.offsets[start])
    return ColumnBlock(
        columns={
            name: nested.take(column, slice(first_row + (start if name == OBS else 0), None))
            for name, column in block.columns.items()
        },
        lengths=block.lengths[start:],
        is_terminated=block.is_terminated[start:],
        is_truncated=block.is_truncated[start:],
        t_started=block.t_started[start:],
        episode_ids=block.episode_ids[start:],
        infos=block.infos and _InfosOfFragments(block.infos, range(start, len(block)), [0] * (len(block) - start)),
        module_id=block.module_id,
    )


def take_fragments(
    block: ColumnBlock, chunks: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> ColumnBlock:
    """Return a block of fragments (one copy a column), the same row any number of times; without lookback.

    Args:
        block: of a single agent.
        chunks: (F,) from which chunk each fragment is.
        starts: (F,) its first step in the chunk.
        lengths: (F,) its steps, at least one.
    """
    ends_chunk = starts + lengths == block.lengths[chunks]
    # Step k of the result is step k - (steps before its fragment) of the fragment; of observations there is one more.
    first_rows, first_obs_rows = block.offsets[chunks] + starts, block.first_obs_rows[chunks] + starts
    rows, obs_rows = row_ranges(first_rows, lengths), row_ranges(first_obs_rows, lengths + 1)
    return ColumnBlock(
        columns={
            name: nested.take(column, obs_rows if name == OBS else rows) for name, column in block.columns.items()
        },
        lengths=lengths,
        is_terminated=block.is_terminated[chunks] & ends_chunk,
        is_truncated=block.is_truncated[chunks] & ends_chunk,
        t_started=block.t_started[chunks] + starts,
        episode_ids=[block.episode_ids[chunk] for chunk in chunks.tolist()],
        infos=block.infos and _InfosOfFragments(block.infos, chunks.tolist(), starts.tolist()),
        module_id=block.module_id,
    )


def row_ranges(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return starts[0], starts[0] + 1, ... (lengths[0] of them), starts[1], ..."""
    num_before = np.cumsum(lengths) - lengths
    rows: npt.NDArray[np.int64] = np.arange(int(lengths.sum())) + np.repeat(starts - num_before, lengths)
    return rows


class _InfosOfFragments:
    """Infos of fragments, asked of the block that they are from."""

    def __init__(self, infos: InfoRows, chunks: Sequence[int], starts: Sequence[int]) -> None:
        self._infos, self._chunks, self._starts = infos, chunks, starts

    def rows_of(self, chunk: int, num_before: int, num_rows: int) -> list[dict[str, Any]] | None:
        start = self._starts[chunk]
        rows = self._infos.rows_of(self._chunks[chunk], 0, start + num_rows)
        return None if rows is None else [{}] * num_before + rows[start:]


def block_from_episodes(episodes: Sequence[SingleAgentEpisode]) -> ColumnBlock:
    """Return a column block with the rows of `episodes` (one copy a column); a block is returned as it is.

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
    columns: dict[str, Column] = {
        OBS: nested.concatenate([_columns_of(episode.get_observations()) for episode in episodes]),
        ACTIONS: nested.concatenate([_columns_of(episode.get_actions()) for episode in episodes]),
        REWARDS: np.concatenate([np.asarray(episode.get_rewards(), np.float32) for episode in episodes]),
    }
    columns |= {
        key: nested.concatenate([_columns_of(episode.get_extra_model_outputs(key)) for episode in episodes])
        for key in extra
    }
    return ColumnBlock(
        columns=columns,
        lengths=np.array([len(episode) for episode in episodes], np.int64),
        is_terminated=np.array([episode.is_terminated for episode in episodes], np.bool_),
        is_truncated=np.array([episode.is_truncated for episode in episodes], np.bool_),
        t_started=np.array([episode.t_started for episode in episodes], np.int64),
        episode_ids=[episode.id_ for episode in episodes],
    )


def _columns_of(items: Any) -> Column:
    """Return what a getter returned (a list of items, or columns already) as columns."""
    return nested.stack(items) if isinstance(items, list) else items
