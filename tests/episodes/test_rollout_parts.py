"""Rollouts cut into parts: no row is lost or doubled, and a cut is the end of a fragment."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.episodes.columns import Agents, ColumnBlock, Lookback, Rollout
from runner.episodes.rollout_parts import split_rollout, take_rows

LENGTHS = st.lists(st.integers(1, 7), min_size=1, max_size=8)


class Past(Lookback):
    """Two steps before each even chunk, numbered below 0."""

    num_before = np.array([2, 0] * 4)

    def columns_before(self, chunk: int) -> dict[str, Any]:
        numbers = -np.arange(2, 0, -1) - 10 * chunk
        return {"obs": {"x": numbers}, "actions": numbers, "rewards": numbers.astype(np.float32)}


class Infos:
    """The chunk and the row of each observation."""

    def rows_of(self, chunk: int, num_rows: int) -> list[dict[str, Any]] | None:
        return None if chunk == 1 else [{"at": (chunk, row)} for row in range(num_rows)]


def _block(lengths: list[int]) -> ColumnBlock:
    num_chunks, num_rows = len(lengths), sum(lengths)
    return ColumnBlock(
        columns={
            "obs": {"x": np.arange(num_rows + num_chunks)},
            "actions": np.arange(num_rows),
            "rewards": np.arange(num_rows, dtype=np.float32),
        },
        lengths=np.array(lengths),
        is_terminated=np.arange(num_chunks) % 3 == 0,
        is_truncated=np.arange(num_chunks) % 3 == 1,
        t_started=np.arange(num_chunks) * 100 + 5,
        episode_ids=[f"e{chunk}" for chunk in range(num_chunks)],
        lookback=Past(),
        infos=Infos(),
        agents=Agents(
            [f"a{chunk}" for chunk in range(num_chunks)],
            [f"m{chunk}" for chunk in range(num_chunks)],
            np.arange(num_rows + num_chunks),
        ),
    )


@given(lengths=LENGTHS, num_parts=st.integers(1, 6))
def test_no_row_is_lost_or_doubled(lengths: list[int], num_parts: int) -> None:
    block = _block(lengths)
    parts = split_rollout(Rollout({"p": block}, 50, ("a",)), num_parts, num_lookback=3)
    assert len(parts) == num_parts
    assert sum(part.num_env_steps for part in parts) == 50
    assert all(part.skip_journal_records == ("a",) for part in parts)
    if sum(lengths) < num_parts:
        assert all(not part.blocks for part in parts)
        return
    blocks = [part.blocks["p"] for part in parts]
    sizes = [one.num_rows for one in blocks]
    assert max(sizes) - min(sizes) <= 1
    np.testing.assert_array_equal(np.concatenate([one.columns["actions"] for one in blocks]), block.columns["actions"])
    num_ends = sum(int(one.is_terminated.sum() + one.is_truncated.sum()) for one in blocks)
    assert num_ends == block.is_terminated.sum() + block.is_truncated.sum()


@given(lengths=LENGTHS, data=st.data(), num_lookback=st.integers(0, 9))
def test_each_chunk_of_a_part_is_a_slice_of_a_chunk(lengths: list[int], data: Any, num_lookback: int) -> None:
    block = _block(lengths)
    start = data.draw(st.integers(0, sum(lengths) - 1))
    stop = data.draw(st.integers(start + 1, sum(lengths)))
    part = pickle.loads(pickle.dumps(take_rows(block, start, stop, num_lookback)))
    assert part.num_rows == stop - start
    first_obs = 0
    for number, (id_, length) in enumerate(zip(part.episode_ids, part.lengths.tolist(), strict=True)):
        chunk = int(id_[1:])
        first_row = int(block.offsets[chunk])
        skipped = max(0, start - first_row)
        is_end = skipped + length == lengths[chunk]
        assert part.agents.agent_ids[number] == f"a{chunk}"
        assert part.t_started[number] == block.t_started[chunk] + skipped
        assert part.is_terminated[number] == (block.is_terminated[chunk] and is_end)
        assert part.is_truncated[number] == (block.is_truncated[chunk] and is_end)
        obs = np.arange(length + 1) + first_row + chunk + skipped
        rows = slice(first_obs, first_obs + length + 1)
        np.testing.assert_array_equal(part.columns["obs"]["x"][rows], obs)
        np.testing.assert_array_equal(part.agents.env_t[rows], obs)
        whole = block.infos.rows_of(chunk, lengths[chunk] + 1)
        expected = None if whole is None else whole[skipped : skipped + length]
        assert part.infos.rows_of(number, length) == expected
        _check_lookback(part, number, block, chunk, skipped, num_lookback)
        first_obs = rows.stop


def _check_lookback(
    part: ColumnBlock, number: int, block: ColumnBlock, chunk: int, skipped: int, num_lookback: int
) -> None:
    past, first_row = Past(), int(block.offsets[chunk])
    before = past.columns_before(chunk)["actions"].tolist() if past.num_before[chunk] else []
    if skipped:
        before = [*before, *range(first_row, first_row + skipped)]
        before = before[-num_lookback:] if num_lookback else []
    num_before = part.lookback.num_before[number] if part.lookback else 0
    assert num_before == len(before)
    if num_before:
        assert part.lookback is not None
        columns = part.lookback.columns_before(number)
        assert columns["actions"].tolist() == before
        assert len(columns["obs"]["x"]) == num_before


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 2), (0, 6)])
def test_rows_that_are_not_there(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match=f"rows {start} to {stop} of a block of 5"):
        take_rows(_block([3, 2]), start, stop, 1)


def test_one_part_is_the_rollout() -> None:
    rollout = Rollout({"p": _block([3])}, 3)
    assert split_rollout(rollout, 1, 1) == [rollout]
