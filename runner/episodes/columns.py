"""The column block: the rows of many episode chunks as one contiguous array per column.

This is Arrow's list layout. R rows of E episode chunks are stored chunk by chunk. A step column has R rows. `obs` has
one more row per chunk (the observation after its last step), so R + E rows. An episode is a slice of it, without a
copy. Dimension letters: T time, N sub-environments, R rows, E episode chunks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from runner.episodes import nested
from runner.episodes.single_agent_episode import SingleAgentEpisode
from runner.fast.copies import changed_copy
from runner.fast.lean_pickle import LeanPickle

Array = npt.NDArray[Any]
# An array (rows, ...), or a dict or tuple of columns with the structure of a Dict or Tuple space.
Column = Any

DEFAULT_MODULE_ID = "default_policy"
OBS = "obs"
ACTIONS = "actions"
REWARDS = "rewards"
# Extra model output: recurrent states after each step.
STATE_OUT = "state_out"
# Columns that are fields of an episode; every other column is an extra model output.
EPISODE_COLUMNS = (OBS, ACTIONS, REWARDS)
# Column of replayed chunks: bool, whether the step only warms up recurrent states, so that losses ignore it.
BURN_IN = "is_burn_in"


class Lookback(ABC):
    """The steps just before the chunks of a block.

    Attributes:
        num_before: (E,) int64, number of visible steps before each chunk.
    """

    num_before: npt.NDArray[np.int64]

    @abstractmethod
    def columns_before(self, chunk: int) -> Mapping[str, Column]:
        """Return the steps before a chunk that continues an episode, as columns with the same number of rows."""

    def rows_before(self, column: str, chunks: npt.NDArray[np.int64], steps_back: npt.NDArray[np.int64]) -> Column:
        """Return the rows (K, ...) of a column, K at least 1.

        Args:
            column: name of the column.
            chunks: chunk (K,) that follows each row.
            steps_back: distance (K,) of each row to its chunk in steps, 1 to `num_before` of the chunk.
        """
        asked, place = np.unique(chunks, return_inverse=True)
        parts = nested.concatenate([self.columns_before(chunk)[column] for chunk in asked.tolist()])
        return nested.take(parts, np.cumsum(self.num_before[asked])[place] - steps_back)


@dataclass(frozen=True)
class LookbackRows(Lookback):
    """The steps before the chunks of a block, as columns.

    Attributes:
        columns: name -> rows before the first chunk, oldest first, then rows before the second chunk, and so on.
    """

    columns: Mapping[str, Column]
    num_before: npt.NDArray[np.int64]

    @cached_property
    def _ends(self) -> npt.NDArray[np.int64]:
        return np.cumsum(self.num_before)

    def columns_before(self, chunk: int) -> Mapping[str, Column]:
        """Return the steps before a chunk as columns."""
        rows = slice(self._ends[chunk] - self.num_before[chunk], self._ends[chunk])
        return {name: nested.take(column, rows) for name, column in self.columns.items()}

    def rows_before(self, column: str, chunks: npt.NDArray[np.int64], steps_back: npt.NDArray[np.int64]) -> Column:
        """Return rows (K, ...) of a column by one gather."""
        return nested.take(self.columns[column], self._ends[chunks] - steps_back)


@dataclass(frozen=True)
class LookbackOfChunks(Lookback):
    """The steps before the chunks of a block, as separate columns of each chunk."""

    columns: Sequence[Mapping[str, Column]]  # of each chunk
    num_before: npt.NDArray[np.int64]

    def columns_before(self, chunk: int) -> Mapping[str, Column]:
        """Return the steps before a chunk as columns."""
        return self.columns[chunk]


def columns_before_each(lookback: Lookback | None, chunks: range) -> dict[int, Mapping[str, Column]]:
    """Return the steps before each chunk in this range that continues an episode, numbered from the first chunk of the
    range."""
    if lookback is None:
        return {}
    found = np.flatnonzero(lookback.num_before[chunks.start : chunks.stop]).tolist()
    return {number: lookback.columns_before(chunks[number]) for number in found}


def lookback_rows(before: Mapping[int, Mapping[str, Column]], num_chunks: int) -> LookbackRows | None:
    """Return a lookback of the steps before each chunk, with one copy per column; None if no chunk has any."""
    if not before:
        return None
    num_before = np.zeros(num_chunks, np.int64)
    for chunk, columns in before.items():
        num_before[chunk] = nested.row_count(columns[OBS])
    in_order = [before[chunk] for chunk in sorted(before)]
    names = [name for name in in_order[0] if all(name in one for one in in_order)]
    return LookbackRows({name: nested.concatenate([one[name] for one in in_order]) for name in names}, num_before)


class InfoRows(Protocol):
    """The infos of a block."""

    def rows_of(self, chunk: int, num_rows: int) -> list[dict[str, Any]] | None:
        """Return `num_rows` infos of the chunk's observations; None if all are empty."""


@dataclass(frozen=True)
class ListedInfos:
    """Infos of each chunk's observations as lists, or None for a chunk if all are empty."""

    rows: Sequence[list[dict[str, Any]] | None]

    def rows_of(self, chunk: int, num_rows: int) -> list[dict[str, Any]] | None:
        """See `InfoRows`."""
        rows = self.rows[chunk]
        return None if rows is None else rows[:num_rows]


@dataclass(frozen=True)
class Agents:
    """The agents of E chunks, and the env episodes that the chunks belong to."""

    agent_ids: Sequence[str]
    multi_agent_episode_ids: Sequence[str]
    env_t: npt.NDArray[np.int64]  # (R + E,) env time step of each observation

    def of_chunks(self, chunks: Sequence[int], obs_rows: npt.NDArray[np.int64]) -> Agents:
        """Return the agents of these chunks, whose observations are in `obs_rows`."""
        return Agents(
            [self.agent_ids[chunk] for chunk in chunks],
            [self.multi_agent_episode_ids[chunk] for chunk in chunks],
            self.env_t[obs_rows],
        )


@dataclass(eq=False)  # one per sample; frozen dataclasses take longer to create
class ColumnBlock(LeanPickle, Sequence[SingleAgentEpisode]):
    """E episode chunks as columns. As a sequence, it holds `SingleAgentEpisode` views, made on demand.

    Attributes:
        columns: name -> array, or nested arrays. `obs` (R + E, ...); every other column (R, ...).
        lengths: (E,) int64, env steps of each chunk.
        is_terminated: (E,) bool, whether the chunk ends in a terminal state.
        is_truncated: (E,) bool, whether the chunk ends because a limit was reached.
        t_started: (E,) int64, the time step within its episode at which the chunk starts.
        episode_ids: E ids; chunks of one episode have the same id.
        lookback: the steps just before chunks that continue an episode.
        last_lookback: the steps just before each chunk's last observation, if it does not follow the chunk's last step
            (in replayed n-step transitions); None: the steps of the chunk.
        infos: non-empty infos of the environment.
        module_id: id of the module that chose the actions.
        agents: agents of the chunks, in runs with several agents.
        tasks: E names of the tasks of the chunks' episodes, None if unknown; only for recorded episodes.
    """

    VECTOR_DTYPES: ClassVar[Mapping[str, Any]] = {
        "lengths": np.int64,
        "is_terminated": np.bool_,
        "is_truncated": np.bool_,
        "t_started": np.int64,
    }

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
    last_lookback: Lookback | None = None
    tasks: Sequence[str | None] | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def num_rows(self) -> int:
        """R, the number of env steps in this block."""
        return len(self.lengths) if self.has_single_steps else int(self.lengths.sum())

    @cached_property
    def offsets(self) -> npt.NDArray[np.int64]:
        """(E + 1,) row at which each chunk starts in the step columns; in `obs` chunk e starts at offsets[e] + e."""
        if self.has_single_steps:
            return np.arange(len(self.lengths) + 1)
        offsets = np.zeros(len(self.lengths) + 1, np.int64)
        np.cumsum(self.lengths, out=offsets[1:])
        return offsets

    @cached_property
    def has_single_steps(self) -> bool:
        """Whether each chunk is one env step, as in replayed transitions."""
        return bool(np.count_nonzero(self.lengths == 1) == len(self.lengths))

    def with_columns(self, columns: Mapping[str, Column]) -> ColumnBlock:
        """Return the block with additional or replaced columns of the same number of rows."""
        return changed_copy(self, columns={**self.columns, **columns})

    def for_auxiliary(self, module_id: str) -> ColumnBlock:
        """Return the block for an auxiliary module, without the recurrent states of the module that acted."""
        columns = {name: column for name, column in self.columns.items() if name != STATE_OUT}
        return changed_copy(self, module_id=module_id, columns=columns)

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
            infos=self.infos.rows_of(chunk, length + 1) if self.infos else None,
            terminated=bool(self.is_terminated[chunk]),
            truncated=bool(self.is_truncated[chunk]),
            t_started=int(self.t_started[chunk]),
            agent_id=self.agents.agent_ids[chunk] if self.agents else None,
            module_id=self.module_id if self.agents else None,
        )
        if self.lookback and self.lookback.num_before[chunk]:  # copies, because past and present are separate arrays
            episode.join_lookback(self._past(chunk))
        if self.agents:
            episode.multi_agent_episode_id = self.agents.multi_agent_episode_ids[chunk]
        return episode

    def _past(self, chunk: int) -> dict[str, Column]:
        """Return the steps before a chunk, with zeros in columns that exist only for the steps of the block."""
        assert self.lookback is not None
        past, num_before = self.lookback.columns_before(chunk), (int(self.lookback.num_before[chunk]),)
        return {
            name: past[name] if name in past else nested.zeros(nested.take(column, 0), num_before)
            for name, column in self.columns.items()
        }

    @property
    def obs_rows(self) -> npt.NDArray[np.int64]:
        """(R,) row of the observation before each step in `obs`; the observation after the step is in the next row."""
        if self.has_single_steps:
            return np.arange(0, 2 * len(self), 2)
        return np.arange(self.num_rows) + np.repeat(np.arange(len(self)), self.lengths)

    @property
    def first_obs_rows(self) -> npt.NDArray[np.int64]:
        """(E,) row of each chunk's first observation in `obs`."""
        return self.offsets[:-1] + np.arange(len(self))

    def history(self, column: str, length: int) -> tuple[Column, npt.NDArray[np.bool_]]:
        """Return the observations or steps that precede each of the R + E observations.

        Args:
            column: `obs` for observations up to the row's own; or a step column for the steps before that observation.
            length: length of the history; rows at a chunk's start include its lookback.

        Returns:
            Values (R + E, length, ...), oldest first, and a mask (R + E, length) of values that are visible and belong
            to the episode. Other values are 0.
        """
        is_obs = column == OBS
        chunk = np.repeat(np.arange(len(self)), self.lengths + 1)
        local = np.arange(len(chunk)) - self.first_obs_rows[chunk]
        first = (self.first_obs_rows if is_obs else self.offsets[:-1])[chunk]
        is_apart = np.zeros(len(chunk), np.bool_)  # observations with separate preceding steps
        if self.last_lookback is not None:
            is_apart = local == self.lengths[chunk]
            first += np.where(is_apart, local, 0)
            local[is_apart] = 0
        back = np.arange(length - 1, -1, -1) if is_obs else np.arange(length, 0, -1)
        steps_back = local[:, None] - back  # (R + E, length) row within the chunk, negative in its lookback
        is_there = steps_back >= 0
        rows = np.where(is_there, first[:, None] + steps_back, 0)

        def gather(array: Array) -> Array:
            values = array[rows] if len(array) else np.zeros((*rows.shape, *array.shape[1:]), array.dtype)
            values[~is_there] = 0
            return values

        values = nested.map_leaves(gather, self.columns[column])
        for lookback, is_seen in ((self.lookback, ~is_apart), (self.last_lookback, is_apart)):
            if lookback is not None:
                is_past = (steps_back < 0) & (-steps_back <= lookback.num_before[chunk][:, None]) & is_seen[:, None]
                if is_past.any():
                    row, place = np.nonzero(is_past)
                    nested.assign(
                        values, (row, place), lookback.rows_before(column, chunk[row], -steps_back[row, place])
                    )
                    is_there |= is_past
        return values, is_there

    def last_row_mask(self) -> npt.NDArray[np.bool_]:
        """Return (R,) bool, true at the last row of each chunk."""
        mask = np.zeros(self.num_rows, np.bool_)
        mask[self.offsets[1:] - 1] = True
        return mask


@dataclass(frozen=True)
class Rollout(LeanPickle):
    """Sampled experiences: a block for each acting module, and the number of env steps.

    Attributes:
        skip_journal_records: value of `rllink.skip_journal_records` with which `resume` continues without this rollout;
            empty if it is not repeated.
        unsplit: the blocks of all modules before the rollout was split or reduced, for connectors that read the rows of
            other agents, or None if they are equal to `blocks`.
    """

    blocks: Mapping[str, ColumnBlock]
    num_env_steps: int
    skip_journal_records: tuple[str, ...] = ()
    unsplit: Mapping[str, ColumnBlock] | None = None

    def of_modules(self, module_ids: Collection[str] | None, sources: Mapping[str, str]) -> Rollout:
        """Return the experiences of some modules.

        Args:
            module_ids: ids of the modules, or None for all acting and auxiliary modules.
            sources: auxiliary module -> the module whose block it gets, unless the rollout has a block for it.
        """
        if module_ids is None and not sources:
            return self
        copies = {
            module_id: self.blocks[source].for_auxiliary(module_id)
            for module_id, source in sources.items()
            if source in self.blocks
        }
        blocks = {**copies, **self.blocks}
        if module_ids is not None:
            blocks = {module_id: block for module_id, block in blocks.items() if module_id in module_ids}
        return replace(self, blocks=blocks)

    def with_writable_rows(self) -> Rollout:
        """Return the rollout with writable arrays; arrays from Ray's object store may be read-only."""
        leaves = [leaf for block in self.blocks.values() for leaf in nested.leaves(block.columns)]
        if all(leaf.flags.writeable for leaf in leaves if isinstance(leaf, np.ndarray)):
            return self
        blocks = {
            module_id: replace(block, columns=nested.map_leaves(_writable, dict(block.columns)))
            for module_id, block in self.blocks.items()
        }
        return replace(self, blocks=blocks)


def _writable(leaf: Any) -> Any:
    return np.require(leaf, requirements="W") if isinstance(leaf, np.ndarray) else leaf


def concat_rollouts(rollouts: Sequence[Rollout]) -> Rollout:
    """Return one rollout with the chunks of all, by module; a single rollout is returned as it is."""
    if len(rollouts) == 1:
        return rollouts[0]
    modules = dict.fromkeys(module_id for rollout in rollouts for module_id in rollout.blocks)
    blocks = {
        module_id: concat_blocks([rollout.blocks[module_id] for rollout in rollouts if module_id in rollout.blocks])
        for module_id in modules
    }
    skip_journal_records = dict.fromkeys(name for rollout in rollouts for name in rollout.skip_journal_records)
    num_env_steps = sum(rollout.num_env_steps for rollout in rollouts)
    return Rollout(blocks, num_env_steps, tuple(skip_journal_records))


def concat_blocks(blocks: Sequence[ColumnBlock]) -> ColumnBlock:
    """Return one block with the chunks of all `blocks`, in order; a single block is returned as it is."""
    if len(blocks) == 1:
        return blocks[0]
    if not blocks:
        raise ValueError("no column blocks to concatenate")
    lengths, infos = [len(block) for block in blocks], [block.infos for block in blocks]
    return ColumnBlock(
        columns={name: nested.concatenate([block.columns[name] for block in blocks]) for name in blocks[0].columns},
        lengths=np.concatenate([block.lengths for block in blocks]),
        is_terminated=np.concatenate([block.is_terminated for block in blocks]),
        is_truncated=np.concatenate([block.is_truncated for block in blocks]),
        t_started=np.concatenate([block.t_started for block in blocks]),
        episode_ids=[id_ for block in blocks for id_ in block.episode_ids],
        lookback=_concatenated_lookback([block.lookback for block in blocks], lengths),
        last_lookback=_concatenated_lookback([block.last_lookback for block in blocks], lengths),
        infos=_ConcatenatedInfos(infos, lengths) if any(infos) else None,
        module_id=blocks[0].module_id,
        agents=_concatenated_agents(blocks),
        tasks=_concatenated_tasks(blocks),
    )


def _concatenated_tasks(blocks: Sequence[ColumnBlock]) -> list[str | None] | None:
    if all(block.tasks is None for block in blocks):
        return None
    return [task for block in blocks for task in block.tasks or [None] * len(block)]


def _concatenated_agents(blocks: Sequence[ColumnBlock]) -> Agents | None:
    parts = [block.agents for block in blocks if block.agents is not None]
    if len(parts) < len(blocks):
        return None
    return Agents(
        [agent for part in parts for agent in part.agent_ids],
        [id_ for part in parts for id_ in part.multi_agent_episode_ids],
        np.concatenate([part.env_t for part in parts]),
    )


def _concatenated_lookback(parts: Sequence[Lookback | None], lengths: Sequence[int]) -> Lookback | None:
    return _ConcatenatedLookback(parts, lengths) if any(part is not None for part in parts) else None


class _ConcatenatedLookback(Lookback):
    """Lookback of concatenated blocks, read from the block that each chunk came from."""

    def __init__(self, parts: Sequence[Lookback | None], lengths: Sequence[int]) -> None:
        self._parts = parts
        self._first_chunk = np.cumsum([0, *lengths])
        self.num_before = np.concatenate(
            [
                np.zeros(length, np.int64) if part is None else part.num_before
                for part, length in zip(parts, lengths, strict=True)
            ]
        )

    def columns_before(self, chunk: int) -> Mapping[str, Column]:
        part, local = _part_of(chunk, self._first_chunk)
        lookback = self._parts[part]
        assert lookback is not None  # only requested for chunks with steps before them
        return lookback.columns_before(local)


class _ConcatenatedInfos:
    """Infos of concatenated blocks, read from the block that each chunk came from."""

    def __init__(self, parts: Sequence[InfoRows | None], lengths: Sequence[int]) -> None:
        self._parts = parts
        self._first_chunk = np.cumsum([0, *lengths])

    def rows_of(self, chunk: int, num_rows: int) -> list[dict[str, Any]] | None:
        part, local = _part_of(chunk, self._first_chunk)
        infos = self._parts[part]
        return infos.rows_of(local, num_rows) if infos else None


def _part_of(chunk: int, first_chunks: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Return the index of a chunk's block, and the chunk's index in it."""
    part = int(np.searchsorted(first_chunks, chunk, side="right")) - 1
    return part, chunk - int(first_chunks[part])


def empty_block(leaves: Mapping[str, Any]) -> ColumnBlock:
    """Return a block without episodes; `leaves` are columns that define dtype and shape of a row."""
    columns = {
        name: nested.map_leaves(lambda leaf: np.zeros((0, *leaf.shape), leaf.dtype), tree)
        for name, tree in leaves.items()
    }
    numbers, flags = np.zeros(0, np.int64), np.zeros(0, np.bool_)
    return ColumnBlock(columns, numbers, flags, flags, numbers, [])


def row_ranges(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return starts[0], starts[0] + 1, ... (lengths[0] of them), starts[1], ..."""
    num_before = np.cumsum(lengths) - lengths
    rows: npt.NDArray[np.int64] = np.arange(int(lengths.sum())) + np.repeat(starts - num_before, lengths)
    return rows


def block_from_episodes(episodes: Sequence[SingleAgentEpisode]) -> ColumnBlock:
    """Return a column block with the rows of `episodes`, with one copy per column; a block is returned as it is.

    The block has the infos of the episodes, but not their lookback.

    Raises:
        ValueError: there are no episodes, one does not have a step, or their extra model outputs differ.
    """
    if isinstance(episodes, ColumnBlock):
        return episodes
    if not episodes:
        raise ValueError("no episodes to make a column block of")
    for episode in episodes:
        if len(episode) == 0:
            raise ValueError(f"episode {episode.id_} does not have a step; a column block holds chunks of at least one")
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
        infos=_infos_of(episodes),
    )


def _infos_of(episodes: Sequence[SingleAgentEpisode]) -> ListedInfos | None:
    rows = [None if episode._infos is None else episode.get_infos() for episode in episodes]
    return ListedInfos(rows) if any(infos and any(infos) for infos in rows) else None


def _columns_of(items: Any) -> Column:
    """Return the result of a getter (a list of items, or columns already) as columns."""
    return nested.stack(items) if isinstance(items, list) else items
