"""Connectors for stateful modules: they add a time axis, and the state at the start of each sequence.

Dimension letters: S sequences, L longest sequence, N sub-environments, R env steps, E episode chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from runner.episodes import nested
from runner.episodes.columns import BURN_IN, Column, ColumnBlock
from runner.modules.default_settings import default_settings, is_default_dtype
from runner.modules.rl_module import RLModule
from runner.pipelines.connector import (
    IS_FIRST,
    LOSS_MASK,
    NEW_STATE_IN,
    SEQ_LENS,
    STATE_IN,
    STATE_OUT,
    Batch,
    Connector,
    Items,
)
from runner.pipelines.connector_graph import ConnectorGraph
from runner.pipelines.connector_graphs import AddStatesGraph, AddTimeGraph
from runner.pipelines.requirements import Requirements
from runner.rows.running_episodes import RunningEpisodes

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Sequences:
    """Positions of a batch's rows in sequences of at most `longest` rows.

    Attributes:
        chunk: (S,) chunk of each sequence's first row.
        start: (S,) position of this row in its chunk.
        lengths: (S,) number of rows.
        longest: L.
    """

    chunk: IntArray
    start: IntArray
    lengths: IntArray
    longest: int

    @classmethod
    def of_chunks(cls, chunk_rows: IntArray, max_seq_len: int, follows: BoolArray | None = None) -> Sequences:
        """Split chunks into sequences.

        Args:
            chunk_rows: (E,) rows of each chunk.
            max_seq_len: L.
            follows: (E,) whether a chunk continues the sequence of the previous chunk; None if no chunk does.
        """
        begins = np.arange(len(chunk_rows)) if follows is None else np.flatnonzero(~follows)
        rows = np.add.reduceat(chunk_rows, begins)  # of chunks that follow each other
        counts = -(-rows // max_seq_len)
        run = np.repeat(np.arange(len(rows)), counts)
        start = (np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts, counts)) * max_seq_len
        lengths = np.minimum(rows[run] - start, max_seq_len)
        first_rows, ends = (np.cumsum(rows) - rows)[run] + start, np.cumsum(chunk_rows)
        chunk = np.searchsorted(ends, first_rows, "right")
        return cls(chunk, first_rows - (ends - chunk_rows)[chunk], lengths, max_seq_len)

    def padded(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return (B, ...) rows as (S, L, ...), 0 after each sequence's end."""
        out = np.zeros((len(self.lengths), self.longest, *column.shape[1:]), column.dtype)
        out[np.arange(self.longest) < self.lengths[:, None]] = column
        return out


def _sequences_of(
    block: ColumnBlock, has_bootstrap_rows: bool, max_seq_len: int, rl_module: Mapping[str, RLModule]
) -> Sequences:
    """Return the sequences of the block's env steps and, if the batch has them, bootstrap rows."""
    follows = None
    if IS_FIRST in rl_module[block.module_id].train_inputs:
        follows = _begins_anew(block)
        follows[:1] = False
    return Sequences.of_chunks(block.lengths + has_bootstrap_rows, max_seq_len, follows)


def _begins_anew(block: ColumnBlock) -> BoolArray:
    """Return (E,) whether each chunk begins with the initial state."""
    return block.t_started == 0 if STATE_OUT in block.columns else np.ones(len(block), np.bool_)


class AddTimeDimToBatchAndZeroPad(Connector):
    """Adds a time axis to every column: (N, ...) -> (N, 1, ...) for acting, (B, ...) -> (S, L, ...) for learning.

    Sequences are zero-padded to L = `max_seq_len`. In a learner pipeline it adds `seq_lens` (S,), `loss_mask` if
    missing, which is false in the padding, and `is_first` (S, L), true where the module begins with its initial state:
    at the first step of an episode, and of every chunk without recorded states. Only a module that has `is_first` in
    its `train_inputs` gets such rows after the beginning of a sequence, which then contains the rows of several chunks.
    Steps of `is_burn_in` stay in their sequences, and are also masked.

    Args:
        max_seq_len: L.
        as_learner_connector: whether the connector is in a learner pipeline.
    """

    def __init__(self, max_seq_len: int = 20, as_learner_connector: bool = False) -> None:
        self._max_seq_len = max_seq_len
        if as_learner_connector:
            self.requires = Requirements(writes=(SEQ_LENS, LOSS_MASK, IS_FIRST), belongs_in=("learner",))

    def __call__(
        self, *, rl_module: Any = None, batch: Batch, episodes: RunningEpisodes | ColumnBlock, **kwargs: Any
    ) -> Batch:
        """Reshape every column; lists (of infos, for example) stay lists."""
        if not isinstance(episodes, ColumnBlock):
            for column, rows in batch.items():
                if not isinstance(rows, list):
                    batch[column] = nested.map_leaves(lambda leaf: leaf[:, None], _as_arrays(rows))
            return batch
        has_bootstrap_rows = LOSS_MASK in batch
        sequences = _sequences_of(episodes, has_bootstrap_rows, self._max_seq_len, rl_module)
        mask, is_burn_in = batch.get(LOSS_MASK, np.ones(episodes.num_rows, np.bool_)), batch.pop(BURN_IN, None)
        batch[LOSS_MASK] = mask if is_burn_in is None else mask & ~is_burn_in
        first_rows = episodes.offsets[:-1] + has_bootstrap_rows * np.arange(len(episodes))
        is_first = np.zeros(len(mask), np.bool_)
        is_first[first_rows[_begins_anew(episodes)]] = True
        batch[IS_FIRST] = is_first
        for column, rows in batch.items():
            if not isinstance(rows, list):
                batch[column] = nested.map_leaves(sequences.padded, _as_arrays(rows, has_bootstrap_rows, episodes))
        batch[SEQ_LENS] = sequences.lengths
        return batch

    def to_graph(self) -> ConnectorGraph | None:
        """Return the equivalent torch graph."""
        return AddTimeGraph()


def _as_arrays(rows: Column | Items, has_bootstrap_rows: bool = False, episodes: Any = None) -> Column:
    return rows.stacked(has_bootstrap_rows, episodes) if isinstance(rows, Items) else rows


class AddStatesFromEpisodesToBatch(Connector):
    """Adds `state_in`: the state before each acting row (N, ...), or before each sequence (S, ...) when learning.

    It is the `state_out` of the previous step, or the module's initial state at the start of an episode. In a learner
    pipeline it also adds `new_state_in`: the state after the first step of each sequence, with which `new_obs` begins.
    Every sequence of recorded steps without states begins with the initial state.

    Args:
        max_seq_len: maximum rows of a sequence, as in `AddTimeDimToBatchAndZeroPad`.
        as_learner_connector: whether the connector is in a learner pipeline.
    """

    requires = Requirements(writes=(STATE_IN,), num_lookback=1)

    def __init__(self, max_seq_len: int = 20, as_learner_connector: bool = False) -> None:
        self._max_seq_len = max_seq_len
        if as_learner_connector:
            self.requires = replace(self.requires, writes=(STATE_IN, NEW_STATE_IN), belongs_in=("learner",))

    def __call__(
        self,
        *,
        rl_module: RLModule | Mapping[str, RLModule],
        batch: Batch,
        episodes: RunningEpisodes | ColumnBlock,
        **kwargs: Any,
    ) -> Batch:
        """Add the column, without a time axis."""
        if isinstance(episodes, ColumnBlock):
            modules = cast(Mapping[str, RLModule], rl_module)
            initial = _initial_state(modules[episodes.module_id])
            sequences = _sequences_of(episodes, _has_bootstrap_rows(episodes, batch), self._max_seq_len, modules)
            if STATE_OUT not in episodes.columns:
                batch[STATE_IN] = batch[NEW_STATE_IN] = _repeated(initial, len(sequences.start))
                return batch
            batch[STATE_IN] = _states_of_sequences(episodes, sequences, initial)
            # A bootstrap row that is a sequence by itself gets the last step; no loss reads it.
            first_rows = np.minimum(sequences.start, episodes.lengths[sequences.chunk] - 1)
            first_rows += episodes.offsets[sequences.chunk]
            batch[NEW_STATE_IN] = nested.take(episodes.columns[STATE_OUT], first_rows)
        else:
            batch[STATE_IN] = _states_of_running(episodes, _initial_state(cast(RLModule, rl_module)))
        return batch

    def to_graph(self) -> ConnectorGraph | None:
        """Return a graph whose inputs are the states."""
        return AddStatesGraph()


def _has_bootstrap_rows(block: ColumnBlock, batch: Batch) -> bool:
    return int(batch[SEQ_LENS].sum()) > block.num_rows


def _initial_state(module: RLModule) -> Column:
    with nullcontext() if is_default_dtype() else default_settings():
        return nested.map_leaves(lambda leaf: leaf.detach().cpu().numpy(), module.get_initial_state())


def _repeated(initial: Column, num_rows: int) -> Column:
    return nested.map_leaves(lambda start: np.repeat(start[None], num_rows, axis=0), initial)


def _states_of_running(episodes: RunningEpisodes, initial: Column) -> Column:
    states = episodes.newest_step(STATE_OUT)
    is_first = episodes.starts_episode
    if states is None:
        return _repeated(initial, len(is_first))

    def with_initial(leaf: npt.NDArray[Any], start: npt.NDArray[Any]) -> npt.NDArray[Any]:
        states = leaf.copy()
        states[is_first] = start
        return states

    return nested.map_leaves(with_initial, states, initial)


def _states_of_sequences(block: ColumnBlock, sequences: Sequences, initial: Column) -> Column:
    is_at_start = sequences.start == 0
    row_before = np.where(is_at_start, 0, block.offsets[sequences.chunk] + sequences.start - 1)

    def gather(column: npt.NDArray[Any], start: npt.NDArray[Any]) -> npt.NDArray[Any]:
        states = column[row_before]
        states[is_at_start] = start
        return states

    states = nested.map_leaves(gather, block.columns[STATE_OUT], initial)
    continuing = np.flatnonzero(is_at_start & (block.t_started[sequences.chunk] > 0))
    if len(continuing):
        chunks = sequences.chunk[continuing]
        _check_lookback(block, chunks)
        assert block.lookback is not None
        nested.assign(states, continuing, block.lookback.rows_before(STATE_OUT, chunks, np.ones_like(chunks)))
    return states


def _check_lookback(block: ColumnBlock, chunks: IntArray) -> None:
    """Check that the state before these chunks, which continue an episode, is available."""
    lacking = chunks if block.lookback is None else chunks[block.lookback.num_before[chunks] == 0]
    if len(lacking):
        raise ValueError(
            f"AddStatesFromEpisodesToBatch: chunk {block.episode_ids[lacking[0]]} starts at time step "
            f"{int(block.t_started[lacking[0]])} without the state before it; keep a lookback of at least 1"
        )
