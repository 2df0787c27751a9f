"""Column blocks: indexing and iteration, concatenation, and blocks made of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from runner.episodes import SingleAgentEpisode
from runner.episodes.columns import ColumnBlock, block_from_episodes, concat_blocks
from tests.support.coded_runs import coded_envs, coded_module, make_runner, weights_of


def episode_of(id_: str, num_steps: int, first: int = 0, terminated: bool = True, t_started: int = 0) -> Any:
    """A list-mode episode; observation i is [first + i, 0], reward and extra output are that number, too."""
    numbers = range(first, first + num_steps)
    return SingleAgentEpisode(
        id_,
        observations=[np.array([i, 0.0], np.float32) for i in range(first, first + num_steps + 1)],
        actions=[i % 3 for i in numbers],
        rewards=[float(i) for i in numbers],
        extra_model_outputs={"number": [np.float32(i) for i in numbers]},
        infos=[{"i": i} for i in range(first, first + num_steps + 1)],
        terminated=terminated,
        truncated=not terminated,
        t_started=t_started,
        len_lookback_buffer=0,
    )


def sampled_blocks(num_lookback: int = 2, lengths: Sequence[int] = (4, 2, 7)) -> list[ColumnBlock]:
    """Three fragments of one runner."""
    env, _ = coded_envs("sync", 3, list(lengths))
    module = coded_module()
    runner = make_runner(env, module, num_lookback)
    return [runner.sample(steps, True, weights_of(module), {}).rollout.blocks["default_policy"] for steps in (7, 8, 9)]


def assert_same_chunk(got: SingleAgentEpisode, expected: SingleAgentEpisode) -> None:
    assert (got.id_, got.t_started, got.t, got.is_terminated, got.is_truncated) == (
        expected.id_,
        expected.t_started,
        expected.t,
        expected.is_terminated,
        expected.is_truncated,
    )
    assert got.rewards.lookback == expected.rewards.lookback
    for name in ("observations", "actions", "rewards"):
        np.testing.assert_array_equal(getattr(got, name).data, getattr(expected, name).data, err_msg=name)
    assert list(got.extra_model_outputs) == list(expected.extra_model_outputs)
    for name, column in expected.extra_model_outputs.items():
        np.testing.assert_array_equal(got.extra_model_outputs[name].data, column.data, err_msg=name)
    assert got.get_infos() == expected.get_infos()


def test_indexing_and_iteration_agree() -> None:
    for block in sampled_blocks():
        chunks = list(block)
        assert len(chunks) == len(block) >= 3
        assert sum(map(len, chunks)) == block.num_rows
        for index, chunk in enumerate(chunks):
            assert_same_chunk(block[index], chunk)
            assert_same_chunk(block[index - len(block)], chunk)
            assert_same_chunk(block[np.int64(index)], chunk)
            assert chunk.get_rewards().tolist() == (
                block.columns["rewards"][block.offsets[index] : block.offsets[index + 1]].tolist()
            )


def test_wrong_indices() -> None:
    block = block_from_episodes([episode_of("a", 2)])
    with pytest.raises(IndexError, match="episode chunk 1 of a block of 1"):
        block[1]
    with pytest.raises(IndexError, match="episode chunk -2 of a block of 1"):
        block[-2]
    with pytest.raises(TypeError, match="number of an episode chunk"):
        block[0:1]  # type: ignore[index]


def test_writes_through_a_chunk_reach_the_columns() -> None:
    block = block_from_episodes([episode_of("a", 2), episode_of("b", 3, first=10)])
    block[1].set_rewards(new_data=-1.0, at_indices=0)
    block[0].set_observations(new_data=np.array([9.0, 9.0]), at_indices=-1)
    assert block.columns["rewards"].tolist() == [0, 1, -1, 11, 12]
    assert block.columns["obs"][:, 1].tolist() == [0, 0, 9, 0, 0, 0, 0]


def scaled_by_views(block: ColumnBlock) -> dict[str, np.ndarray]:
    """What the step columns and `obs` should be after `scale_through_views`."""
    return {name: np.asarray(column) * 10 for name, column in block.columns.items()}


def scale_through_views(block: ColumnBlock) -> None:
    for chunk in block:
        chunk.set_observations(new_data=chunk.get_observations() * 10)
        chunk.set_actions(new_data=chunk.get_actions() * 10)
        chunk.set_rewards(new_data=[reward * 10 for reward in chunk.get_rewards()])
        for key, outputs in chunk.get_extra_model_outputs().items():
            chunk.set_extra_model_outputs(key=key, new_data=outputs * 10)


@pytest.mark.parametrize("num_lookback", [0, 1, 2, 5])
@pytest.mark.parametrize("is_concatenated", [False, True])
def test_writes_through_views_reach_every_row_of_continued_chunks(num_lookback: int, is_concatenated: bool) -> None:
    blocks = sampled_blocks(num_lookback)
    block = concat_blocks(blocks) if is_concatenated else blocks[1]
    assert (block.t_started > 0).any()
    assert any(chunk.rewards.lookback for chunk in block) == (num_lookback > 0)
    expected = scaled_by_views(block)
    scale_through_views(block)
    for name, column in expected.items():
        np.testing.assert_array_equal(block.columns[name], column, err_msg=name)


def test_writes_at_indices_of_a_continued_chunk() -> None:
    block = sampled_blocks(lengths=[7])[1]
    number = next(number for number, chunk in enumerate(block) if chunk.rewards.lookback == 2 and len(chunk) == 3)
    chunk, rows = block[number], slice(block.offsets[number], block.offsets[number + 1])
    chunk.set_rewards(new_data=-1.0, at_indices=0)
    chunk.rewards[-1] = -2.0
    chunk.set_rewards(new_data=[-3.0, -4.0], at_indices=[-1, 1], neg_index_as_lookback=True)
    assert block.columns["rewards"][rows].tolist() == [-1, -4, -2]
    assert chunk.rewards.data[1:].tolist() == [-3, -1, -4, -2]
    assert block[number].get_rewards(-1, neg_index_as_lookback=True) == -3  # all views share one lookback


def test_what_cannot_reach_the_block_is_refused() -> None:
    block = sampled_blocks()[1]
    chunk = next(chunk for chunk in block if chunk.rewards.lookback)
    with pytest.raises(ValueError, match="read-only"):
        chunk.get_rewards()[:] = 0.0
    with pytest.raises(ValueError, match="read-only"):
        chunk[0:].set_rewards(new_data=0.0, at_indices=0)


def test_last_row_mask_and_offsets() -> None:
    block = block_from_episodes([episode_of("a", 2), episode_of("b", 1), episode_of("c", 3)])
    assert block.offsets.tolist() == [0, 2, 3, 6]
    assert block.last_row_mask().tolist() == [False, True, True, False, False, True]
    assert block.extra_columns == ["number"]


def test_concatenated_blocks_hold_the_chunks_of_all() -> None:
    blocks = sampled_blocks()
    together = concat_blocks(blocks)
    apart = [chunk for block in blocks for chunk in block]
    assert len(together) == len(apart)
    assert any(chunk.rewards.lookback for chunk in apart)
    for index, (got, expected) in enumerate(zip(together, apart, strict=True)):
        assert_same_chunk(got, expected)
        assert_same_chunk(together[index], expected)


def test_concatenation_of_concatenated_blocks() -> None:
    first, second, third = sampled_blocks()
    nested = concat_blocks([concat_blocks([first, second]), third])
    flat = concat_blocks([first, second, third])
    for got, expected in zip(nested, flat, strict=True):
        assert_same_chunk(got, expected)


def test_concatenation_of_blocks_with_and_without_lookback() -> None:
    sampled = sampled_blocks()[1]
    sampled = ColumnBlock(
        {name: sampled.columns[name] for name in ("obs", "actions", "rewards")},
        sampled.lengths,
        sampled.is_terminated,
        sampled.is_truncated,
        sampled.t_started,
        sampled.episode_ids,
        sampled.lookback,
        sampled.infos,
    )
    plain = ColumnBlock(
        {
            "obs": np.zeros((3, 3), np.float32),
            "actions": np.zeros(2, np.int64),
            "rewards": np.zeros(2, np.float32),
        },
        np.array([2]),
        np.array([False]),
        np.array([True]),
        np.array([5]),
        ["plain"],
    )
    together = concat_blocks([plain, sampled, plain])
    assert together[0].rewards.lookback == together[-1].rewards.lookback == 0
    assert together[-1].get_infos() == [{}, {}, {}]
    for index, expected in enumerate(sampled):
        assert_same_chunk(together[1 + index], expected)


def test_one_block_is_returned_and_none_is_an_error() -> None:
    block = block_from_episodes([episode_of("a", 2)])
    assert concat_blocks([block]) is block
    with pytest.raises(ValueError, match="no column blocks"):
        concat_blocks([])


@pytest.mark.parametrize("is_numpy", [False, True])
def test_block_of_episodes_holds_their_rows(is_numpy: bool) -> None:
    episodes = [episode_of("a", 3), episode_of("b", 1, first=10, terminated=False, t_started=4)]
    if is_numpy:
        episodes = [episode.to_numpy() for episode in episodes]
    block = block_from_episodes(episodes)
    assert block.columns["obs"][:, 0].tolist() == [0, 1, 2, 3, 10, 11]
    assert block.columns["actions"].tolist() == [0, 1, 2, 1]
    assert block.columns["rewards"].tolist() == [0, 1, 2, 10]
    assert block.columns["rewards"].dtype == np.float32
    assert block.columns["number"].tolist() == [0, 1, 2, 10]
    assert block.lengths.tolist() == [3, 1]
    assert block.is_terminated.tolist() == [True, False]
    assert block.is_truncated.tolist() == [False, True]
    assert block.t_started.tolist() == [0, 4]
    assert list(block.episode_ids) == ["a", "b"]
    assert [episode.get_infos() for episode in block] == [episode.get_infos() for episode in episodes]
    assert block_from_episodes(block) is block


def test_block_of_chunks_with_lookback_holds_their_own_rows_only() -> None:
    whole = episode_of("a", 3)
    whole.is_terminated = whole.is_truncated = False
    chunk = whole.cut(len_lookback_buffer=2)
    chunk.add_env_step(np.array([4.0, 0.0], np.float32), 1, 3.0, extra_model_outputs={"number": np.float32(3.0)})
    block = block_from_episodes([chunk])
    assert block.columns["obs"][:, 0].tolist() == [3, 4]
    assert block.columns["rewards"].tolist() == [3]
    assert block.columns["number"].tolist() == [3]
    assert block.t_started.tolist() == [3]
    assert block[0].get_infos() == [{"i": 3}, {}]


def test_block_of_episodes_without_infos() -> None:
    without = SingleAgentEpisode(
        "b",
        observations=[np.zeros(2, np.float32)] * 2,
        actions=[0],
        rewards=[0.0],
        extra_model_outputs={"number": [np.float32(0)]},
        len_lookback_buffer=0,
    )
    assert block_from_episodes([without]).infos is None
    block = block_from_episodes([without, episode_of("a", 1)])
    assert [episode.get_infos() for episode in block] == [[{}, {}], [{"i": 0}, {"i": 1}]]


def test_episodes_that_make_no_block() -> None:
    with pytest.raises(ValueError, match="episode empty does not have a step"):
        block_from_episodes([episode_of("a", 1), SingleAgentEpisode("empty", observations=[np.zeros(2)])])
    other = SingleAgentEpisode("b", observations=[0, 1], actions=[0], rewards=[0.0], len_lookback_buffer=0)
    with pytest.raises(ValueError, match=r"episode b has the extra model outputs \[\], others have \['number'\]"):
        block_from_episodes([episode_of("a", 1), other])
    with pytest.raises(ValueError, match="no episodes"):
        block_from_episodes([])
