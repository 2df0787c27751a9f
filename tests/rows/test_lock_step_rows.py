"""Rows in lock step on their own: writes through views, growth, infos and short fragments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from runner.config.errors import RunFailure
from runner.rows.lock_step_rows import LockStepRows
from tests.support.environments import CodedVectorEnv, coded_reward


class Driver:
    """Fills a buffer from coded sub-environments; action and output of a step are its number, 1, 2, ..."""

    def __init__(self, num_envs: int, lengths: Sequence[int], num_lookback: int) -> None:
        self.env = CodedVectorEnv(num_envs, lengths)
        self.buffer = LockStepRows(num_envs, np.zeros(3, np.float32), np.int64(0), "x", num_lookback)
        self.number = 0
        self.buffer.add_reset(*self.env.reset())

    def steps(self, count: int) -> LockStepRows:
        for _ in range(count):
            self.number += 1
            actions = np.full(self.env.num_envs, self.number % 5)
            outputs = {"actions": actions, "number": np.full(self.env.num_envs, float(self.number))}
            self.buffer.add_step(*self.env.step(actions), outputs)
        return self.buffer


def places(episode: Any) -> list[tuple[int, ...]]:
    """(n, t, k) of all observations, those of the lookback first."""
    return [tuple(int(code) for code in row) for row in episode.observations.data]


def test_writes_through_views_reach_the_block() -> None:
    driver = Driver(2, [50], num_lookback=1)
    driver.steps(2).cut()
    driver.steps(2)
    episode = driver.buffer[1]
    episode.set_observations(new_data=np.full(3, 77.0), at_indices=-1)
    episode.set_rewards(new_data=np.float32(-5.0), at_indices=0)
    episode.set_extra_model_outputs(key="number", new_data=-1.0, at_indices=1)
    driver.buffer.current_obs[0] = 66.0
    fragment = driver.buffer.cut()
    block, finished = fragment.block, fragment.finished
    assert block.columns["obs"][:, 0].tolist() == [0, 0, 66, 1, 1, 77]
    assert block.columns["rewards"][2:].tolist() == [-5.0, coded_reward(1, 4, 0)]
    assert block.columns["number"].tolist() == [3.0, 4.0, 3.0, -1.0]
    assert len(finished.returns) == 0


def test_an_episode_that_is_cut_twice_keeps_its_return_and_its_time() -> None:
    driver = Driver(1, [5, 50], num_lookback=0)
    started, returns, lengths = [], [], []
    for _ in range(3):
        fragment = driver.steps(2).cut()
        started += fragment.block.t_started.tolist()
        returns += fragment.finished.returns.tolist()
        lengths += fragment.finished.lengths.tolist()
    assert started == [0, 2, 4]
    assert returns == [sum(coded_reward(0, t, 0) for t in range(1, 6))]
    assert lengths == [5]


def test_growth_in_the_middle_of_a_fragment_keeps_who_awaits_its_reset() -> None:
    driver = Driver(2, [2, 50], 0)
    driver.steps(2).reserve(300)
    driver.steps(1)
    block = driver.buffer.cut().block
    assert block.num_rows == 2 + 3  # the third row of sub-environment 0 was its reset
    assert block.lengths.tolist() == [2, 3]


def test_state_is_a_copy() -> None:
    driver = Driver(2, [50], 1)
    driver.steps(3).cut()
    state = driver.buffer.get_state()
    newest = state["obs"].copy()
    driver.steps(3).cut()
    np.testing.assert_array_equal(state["obs"], newest)


def assert_same_view(got: Any, expected: Any) -> None:
    assert (got.id_, got.t_started, got.t, got.is_terminated, got.is_truncated, got.rewards.lookback) == (
        expected.id_,
        expected.t_started,
        expected.t,
        expected.is_terminated,
        expected.is_truncated,
        expected.rewards.lookback,
    )
    assert places(got) == places(expected)
    assert got.get_infos() == expected.get_infos()
    np.testing.assert_array_equal(got.actions.data, expected.actions.data)
    np.testing.assert_array_equal(got.rewards.data, expected.rewards.data)


def assert_same_blocks(got: Any, expected: Any) -> None:
    assert list(got.columns) == list(expected.columns)
    for name in expected.columns:
        np.testing.assert_array_equal(got.columns[name], expected.columns[name], err_msg=name)
    assert got.episode_ids == expected.episode_ids
    np.testing.assert_array_equal(got.t_started, expected.t_started)
    np.testing.assert_array_equal(got.is_terminated, expected.is_terminated)
    np.testing.assert_array_equal(got.is_truncated, expected.is_truncated)
    for episode, other in zip(got, expected, strict=True):
        assert_same_view(episode, other)


def test_infos_of_gymnasiums_nested_dicts() -> None:
    buffer = LockStepRows(2, np.zeros(3, np.float32), np.int64(0), "x", 0)
    obs, false = np.zeros((2, 3), np.float32), np.zeros(2, np.bool_)
    only_second = np.array([False, True])
    nested = {"arm": {"angle": np.array([0.0, 1.5]), "_angle": only_second}, "_arm": only_second}
    buffer.add_reset(obs, nested)
    outputs = {"actions": np.zeros(2, np.int64)}
    buffer.add_step(obs, np.zeros(2), false, false, {"plain": np.array([3, 4])}, outputs)
    block = buffer.cut().block
    assert [episode.get_infos() for episode in block] == [[{}, {"plain": 3}], [{"arm": {"angle": 1.5}}, {"plain": 4}]]


def test_running_episodes_see_their_infos() -> None:
    buffer = LockStepRows(2, np.zeros(1, np.float32), np.int64(0), "x", 1)
    buffer.add_reset(np.zeros((2, 1)), [{"k": 0}, {}])
    no = np.zeros(2, np.bool_)
    for t in (1, 2):
        done = np.array([t == 1, False])  # sub-environment 0 is reset by the second step
        buffer.add_step(np.zeros((2, 1)), np.zeros(2), done, no, [{"k": t}, {"m": -t}], {"actions": np.zeros(2)})
    assert buffer[0].get_infos() == [{"k": 2}]
    assert buffer[1].get_infos() == [{}, {"m": -1}, {"m": -2}]


COLUMNS = {"k": np.array([1, 0]), "_k": np.array([True, False])}


@pytest.mark.parametrize("infos", [[{"k": 1}, {}], [{"k": 1, "odd": object()}, {}], COLUMNS])
def test_a_state_has_the_infos_of_the_newest_observations(infos: Any) -> None:
    buffer, restored = (LockStepRows(2, np.zeros(1, np.float32), np.int64(0), "x", 1) for _ in range(2))
    no, outputs = np.zeros(2, np.bool_), {"actions": np.zeros(2, np.int64)}
    buffer.add_reset(np.zeros((2, 1)), {})
    buffer.add_step(np.zeros((2, 1)), np.zeros(2), no, no, infos, outputs)
    buffer.cut()
    restored.set_state(buffer.get_state())
    restored.add_step(np.zeros((2, 1)), np.zeros(2), no, no, [{}, {"m": 2}], outputs)
    assert [episode.get_infos() for episode in restored.cut().block] == [[{"k": 1}, {}], [{}, {"m": 2}]]


def test_a_state_leaves_out_infos_that_do_not_belong_to_single_sub_environments() -> None:
    buffer = LockStepRows(2, np.zeros(1, np.float32), np.int64(0), "x", 0)
    for infos in ({"frames_per_second": 3.0}, {"loads": np.array([0.5])}):
        buffer.clear()
        buffer.add_reset(np.zeros((2, 1)), infos)
        assert buffer.get_state()["infos"] == []


@pytest.mark.parametrize(
    ("infos", "key", "got"),
    [
        ({"frames_per_second": 3.0}, "frames_per_second", "3.0"),
        ({"loads": np.array([0.5])}, "loads", "[0.5]"),
        ({"arm": {"loads": np.array([0.5])}}, "loads", "[0.5]"),
        ({"loads": np.array([0.5, 1.5]), "_loads": True}, "loads", "[0.5 1.5]"),
    ],
)
def test_readers_of_infos_that_do_not_belong_to_single_sub_environments(infos: Any, key: str, got: str) -> None:
    buffer = LockStepRows(2, np.zeros(1, np.float32), np.int64(0), "x", 0)
    buffer.add_reset(np.zeros((2, 1)), infos)
    with pytest.raises(RunFailure, match=f"info {key} does not contain a value per sub-environment") as caught:
        buffer[1].get_infos()
    assert caught.value.problem.got == got


@pytest.mark.parametrize("lengths", [[50], [1, 2, 3], [4, 1]])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_cuts_after_each_step_are_parts_of_one_cut(num_envs: int, lengths: list[int]) -> None:
    """Fragments of one vector step without a gap are cut in a way of their own."""
    whole, by_step = (Driver(num_envs, lengths, num_lookback=0) for _ in range(2))
    expected = whole.steps(12).cut()
    cuts = [by_step.steps(1).cut() for _ in range(12)]
    by_id: dict[str, list[Any]] = {}
    for cut in cuts:
        for chunk, id_ in enumerate(cut.block.episode_ids):
            by_id.setdefault(id_, []).append((cut.block, chunk))
    assert set(by_id) == set(expected.block.episode_ids)
    for chunk, id_ in enumerate(expected.block.episode_ids):
        episode = expected.block[chunk]
        steps = [block[one] for block, one in by_id[id_]]
        assert [step.t_started for step in steps] == list(range(episode.t_started, episode.t))
        joined = [*places(steps[0])[:1], *(place for step in steps for place in places(step)[1:])]
        assert joined == places(episode)
        assert [step.get_rewards(0) for step in steps] == episode.get_rewards().tolist()
        assert [step.get_extra_model_outputs("number", 0) for step in steps] == episode.get_extra_model_outputs(
            "number"
        ).tolist()
        assert [step.is_terminated for step in steps] == [False] * (len(steps) - 1) + [episode.is_terminated]
        assert [step.is_truncated for step in steps] == [False] * (len(steps) - 1) + [episode.is_truncated]
    returns = np.concatenate([cut.finished.returns for cut in cuts])
    np.testing.assert_allclose(returns, expected.finished.returns)
    assert np.concatenate([cut.finished.lengths for cut in cuts]).tolist() == expected.finished.lengths.tolist()
    assert np.concatenate([cut.finished.env_of for cut in cuts]).tolist() == expected.finished.env_of.tolist()
    for before, after in pairwise(cuts):  # what was given stays as it was
        assert not np.shares_memory(before.block.columns["obs"], after.block.columns["obs"])
    for key, value in whole.buffer.get_state().items():
        np.testing.assert_equal(by_step.buffer.get_state()[key], value)
