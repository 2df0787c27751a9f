"""The buffer against a plain list of episodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.episodes.columns import ColumnBlock
from runner.replay import EpisodeReplayBuffer
from runner.streams import random_stream


def block_of(lengths: list[int], first: int) -> ColumnBlock:
    """Episode e has obs 1000 e + t and rewards t; every second one is terminated."""
    ids = np.arange(first, first + len(lengths))
    return ColumnBlock(
        columns={
            "obs": {"x": np.concatenate([1000 * e + np.arange(n + 1) for e, n in zip(ids, lengths, strict=True)])},
            "actions": np.concatenate([1000 * e + np.arange(n) for e, n in zip(ids, lengths, strict=True)]),
            "rewards": np.concatenate([np.arange(n, dtype=np.float32) for n in lengths]),
        },
        lengths=np.array(lengths, np.int64),
        is_terminated=ids % 2 == 0,
        is_truncated=ids % 2 == 1,
        t_started=np.zeros(len(lengths), np.int64),
        episode_ids=[str(e) for e in ids],
        infos=_Infos(ids),
    )


class _Infos:
    def __init__(self, ids: np.ndarray) -> None:
        self._ids = ids

    def rows_of(self, chunk: int, num_rows: int) -> list[dict[str, int]]:
        return [{"step": 1000 * int(self._ids[chunk]) + row} for row in range(num_rows)]


blocks = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=1, max_size=6)


@given(lengths=blocks, capacity=st.integers(2, 40))
def test_the_newest_steps_are_kept(lengths: list[list[int]], capacity: int) -> None:
    """Each chunk takes a row for each step and one for its last observation."""
    buffer, rows = EpisodeReplayBuffer(capacity), []
    for number, own in enumerate(lengths):
        buffer.add(block_of(own, number))
        rows += [is_step for length in own for is_step in [True] * length + [False]]
        assert buffer.num_env_steps == sum(rows[-capacity:]), number


@given(lengths=blocks, num_env_steps=st.integers(1, 60), fragment=st.integers(1, 15), seed=st.integers(0, 99))
def test_a_sample_has_so_many_steps_of_the_episodes(
    lengths: list[list[int]], num_env_steps: int, fragment: int, seed: int
) -> None:
    buffer, all_lengths = EpisodeReplayBuffer(30, batch_length_T=fragment), []
    for own in lengths:
        buffer.add(block_of(own, len(all_lengths)))
        all_lengths += own
    sample = buffer.sample(num_env_steps, random_stream(seed, "test"))
    assert sample.num_rows == num_env_steps
    assert set(sample.columns) == {"obs", "actions", "rewards"}
    for episode in sample:
        id_, start, length = int(episode.id_), episode.t_started, len(episode)
        assert length <= fragment
        steps = np.arange(start, start + length + 1)
        np.testing.assert_array_equal(episode.get_observations()["x"], 1000 * id_ + steps)
        np.testing.assert_array_equal(episode.get_actions(), 1000 * id_ + steps[:-1])
        np.testing.assert_array_equal(episode.get_rewards(), steps[:-1])
        assert [info["step"] for info in episode.get_infos()] == (1000 * id_ + steps).tolist()
        is_last = start + length == all_lengths[id_]
        assert episode.is_terminated == (is_last and id_ % 2 == 0)
        assert episode.is_truncated == (is_last and id_ % 2 == 1)


def test_every_step_is_equally_likely() -> None:
    buffer = EpisodeReplayBuffer()
    buffer.add(block_of([3, 7], 0))
    actions = buffer.sample(20_000, random_stream(0, "test")).columns["actions"]
    counts = np.unique(actions, return_counts=True)[1]
    assert len(counts) == 10
    assert counts.min() > 1850
    assert counts.max() < 2150


def test_time_steps_go_on_from_the_start_of_a_chunk() -> None:
    buffer, block = EpisodeReplayBuffer(batch_length_T=3), block_of([5], 0)
    buffer.add(replace(block, t_started=np.array([100]), infos=None))
    for episode in buffer.sample(60, random_stream(0, "test")):
        assert episode.t_started == 100 + episode.get_rewards()[0]
        assert episode.get_infos() == [{}] * (len(episode) + 1)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity must be an integer of 2 or more, got 0"):
        EpisodeReplayBuffer(0)
    with pytest.raises(ValueError, match="an empty buffer cannot be sampled"):
        EpisodeReplayBuffer().sample(3, random_stream(0, "test"))
