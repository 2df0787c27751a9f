"""Parts of rollouts: a selection of their episode chunks, or equal numbers of rows with chunks split if needed.

Dimension letters: R rows, E episode chunks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.episodes import nested
from runner.episodes.columns import (
    OBS,
    Agents,
    Column,
    ColumnBlock,
    InfoRows,
    ListedInfos,
    Lookback,
    Rollout,
    columns_before_each,
    lookback_rows,
    row_ranges,
)

IntArray = npt.NDArray[np.int64]


def take_chunks(block: ColumnBlock, chunks: Sequence[int] | IntArray) -> ColumnBlock:
    """Return a block of these chunks, in this order, without lookback; for all chunks in order return `block` itself.

    Args:
        block: block of E chunks.
        chunks: indices of the chunks.
    """
    numbers = np.asarray(chunks, np.int64)
    if np.array_equal(numbers, np.arange(len(block))) and block.lookback is None:
        return block
    lengths = block.lengths[numbers]
    rows = row_ranges(block.offsets[numbers], lengths)
    obs_rows = row_ranges(block.first_obs_rows[numbers], lengths + 1)
    chosen = numbers.tolist()
    rows_of = {name: obs_rows if name == OBS else rows for name in block.columns}
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
        agents=block.agents and block.agents.of_chunks(chosen, obs_rows),
        tasks=None if block.tasks is None else [block.tasks[chunk] for chunk in chosen],
    )


@dataclass(frozen=True)
class _ChosenInfos:
    infos: InfoRows
    chunks: Sequence[int]

    def rows_of(self, chunk: int, num_rows: int) -> list[dict[str, Any]] | None:
        return self.infos.rows_of(self.chunks[chunk], num_rows)


def split_rollout(rollout: Rollout, num_parts: int, num_lookback: int) -> list[Rollout]:
    """Split the rows of each module, in order, into parts whose sizes differ by at most one; columns are views.

    A chunk may be split. The part before the split then ends in a fragment that continues: neither terminated nor
    truncated, with the observation after its last row. The part after the split has the rows before it as lookback. A
    module with fewer rows than parts is not in any part. If there is one part, it is the rollout itself.

    Args:
        rollout: sampled experiences.
        num_parts: at least 1.
        num_lookback: maximum number of past steps that are visible to a chunk after a split.
    """
    if num_parts == 1:
        return [rollout]
    blocks: list[dict[str, ColumnBlock]] = [{} for _ in range(num_parts)]
    for module_id, block in rollout.blocks.items():
        if block.num_rows >= num_parts:
            for part, (start, stop) in zip(blocks, _even_ranges(block.num_rows, num_parts), strict=True):
                part[module_id] = take_rows(block, start, stop, num_lookback)
    env_steps = _even_ranges(rollout.num_env_steps, num_parts)
    return [
        Rollout(part, stop - start, rollout.skip_journal_records)
        for part, (start, stop) in zip(blocks, env_steps, strict=True)
    ]


def take_rows(block: ColumnBlock, start: int, stop: int, num_lookback: int) -> ColumnBlock:
    """Return the rows `start` to `stop` (excluded) with their chunks, as views; see `split_rollout`.

    Raises:
        ValueError: the rows do not exist.
    """
    if not 0 <= start < stop <= block.num_rows:
        raise ValueError(f"rows {start} to {stop} of a block of {block.num_rows}")
    offsets = block.offsets
    first = int(np.searchsorted(offsets, start, side="right")) - 1
    last = int(np.searchsorted(offsets, stop, side="left")) - 1
    numbers, chunks, obs_rows = range(first, last + 1), slice(first, last + 1), slice(start + first, stop + last + 1)
    starts = np.maximum(offsets[chunks], start)
    lengths = np.minimum(offsets[first + 1 : last + 2], stop) - starts
    is_last_part = np.arange(first, last + 1) < last
    is_last_part[-1] = stop == offsets[last + 1]
    num_before = start - int(offsets[first])  # steps of the first chunk before the part
    return ColumnBlock(
        columns={
            name: nested.take(column, obs_rows if name == OBS else slice(start, stop))
            for name, column in block.columns.items()
        },
        lengths=lengths,
        is_terminated=block.is_terminated[chunks] & is_last_part,
        is_truncated=block.is_truncated[chunks] & is_last_part,
        t_started=block.t_started[chunks] + starts - offsets[chunks],
        episode_ids=block.episode_ids[chunks],
        lookback=_lookback(block, numbers, num_before, num_lookback),
        last_lookback=lookback_rows(columns_before_each(block.last_lookback, numbers), len(numbers)),
        infos=block.infos and _infos(block.infos, first, num_before, lengths.tolist()),
        module_id=block.module_id,
        agents=block.agents and _agents(block.agents, chunks, obs_rows),
    )


def _even_ranges(num_rows: int, num_parts: int) -> list[tuple[int, int]]:
    ends = [num_rows * (part + 1) // num_parts for part in range(num_parts)]
    return list(zip([0, *ends], ends, strict=False))


def _agents(agents: Agents, chunks: slice, obs_rows: slice) -> Agents:
    return Agents(agents.agent_ids[chunks], agents.multi_agent_episode_ids[chunks], agents.env_t[obs_rows])


def _lookback(block: ColumnBlock, chunks: range, num_before: int, num_lookback: int) -> Lookback | None:
    """Return the steps before each chunk of a part, `num_before` of which are in the block, for its first chunk.

    It does not reference other rows, so that a part is small when it is sent.
    """
    before = columns_before_each(block.lookback, chunks)
    if num_before:
        earlier = before.pop(0, None)
        if num_lookback:
            before[0] = _steps_before_cut(block, chunks.start, num_before, num_lookback, earlier)
    return lookback_rows(before, len(chunks))


def _steps_before_cut(
    block: ColumnBlock, chunk: int, num_before: int, num_lookback: int, earlier: Mapping[str, Column] | None
) -> Mapping[str, Column]:
    """Return the steps before a split: rows of the chunk, preceded by the newest steps before it if there are few."""
    num_rows = min(num_before, num_lookback)
    stop, obs_stop = int(block.offsets[chunk]) + num_before, int(block.first_obs_rows[chunk]) + num_before
    rows = {
        name: nested.take(column, slice(end - num_rows, end))
        for name, column in block.columns.items()
        for end in (obs_stop if name == OBS else stop,)
    }
    num_earlier = num_lookback - num_rows
    if earlier is None or num_earlier == 0:
        return rows
    newest = {name: nested.take(column, slice(-num_earlier, None)) for name, column in earlier.items()}
    return {name: nested.concatenate([newest[name], rows[name]]) for name in newest}


def _infos(infos: InfoRows, first: int, num_before: int, lengths: Sequence[int]) -> ListedInfos:
    rows = []
    for number, length in enumerate(lengths):
        skipped = 0 if number else num_before
        of_chunk = infos.rows_of(first + number, skipped + length + 1)
        rows.append(None if of_chunk is None else of_chunk[skipped:])
    return ListedInfos(rows)
