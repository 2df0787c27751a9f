"""Clipped and scaled rewards: what is learned from changes, what the episodes count does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.episodes.columns import ColumnBlock, block_from_episodes, concat_blocks
from runner.pipelines import ClipRewards, ScaleRewards
from runner.pipelines import reward_connectors as module_under_test
from tests.episodes.test_columns import episode_of
from tests.pipelines.connector_contract import AFTER_COLUMNS, WITH_MASK, ConnectorCase, check_connector
from tests.pipelines.learner_batches import learner_batch

CASES = {
    "ClipRewards": ConnectorCase(ClipRewards, "learner", *AFTER_COLUMNS),
    "ClipRewards-mask": ConnectorCase(
        lambda: ClipRewards(2.0, 5.0, sign=True), "learner", *AFTER_COLUMNS, edits=WITH_MASK
    ),
    "ClipRewards-last": ConnectorCase(ClipRewards, "learner", "append", edits=WITH_MASK),
    "ScaleRewards": ConnectorCase(ScaleRewards, "learner", *AFTER_COLUMNS),
    "ScaleRewards-mask": ConnectorCase(ScaleRewards, "learner", *AFTER_COLUMNS, edits=WITH_MASK),
    "ScaleRewards-factor": ConnectorCase(lambda: ScaleRewards(0.5), "learner", *AFTER_COLUMNS),
    "ScaleRewards-last": ConnectorCase(ScaleRewards, "learner", "append", edits=WITH_MASK),
}


@pytest.mark.parametrize("name", CASES)
def test_contract(name: str) -> None:
    check_connector(*CASES[name])


@pytest.mark.parametrize("edits", [[], WITH_MASK], ids=["plain", "with_mask"])
@pytest.mark.parametrize("anchor", ["AgentToModuleMapping", "NumpyToTensor"])
@pytest.mark.parametrize(
    ("connector", "expected"),
    [
        (ClipRewards(0.5, 5.0), [0.5, 1, 2, 5]),
        (ClipRewards(0.0, 3.0), [0, 1, 2, 3]),
        (ClipRewards(sign=True), [0, 1, 1, 1]),
        (ScaleRewards(0.25), [0, 0.25, 0.5, 2.5]),
    ],
)
def test_each_row_is_changed_and_bootstrap_rows_stay_zero(
    connector: Any, expected: Any, edits: Any, anchor: str
) -> None:
    batch = learner_batch(edits, (anchor, connector))
    if edits:
        expected = [*expected[:3], 0, *expected[3:], 0]
    assert batch["rewards"].tolist() == expected
    assert batch["rewards"].dtype == torch.float32


@pytest.mark.parametrize("connector", [ClipRewards(-1.0, 1.0, True), ScaleRewards(0.5), ScaleRewards()])
def test_tensors_work_and_nothing_is_changed_in_place(connector: Any) -> None:
    block = block_from_episodes([episode_of("a", 3)])
    rewards = block.columns["rewards"]
    got = connector(batch={"rewards": rewards}, episodes=block)["rewards"]
    connector.reset_state()
    tensors = {block.module_id: {"rewards": torch.from_numpy(rewards)}}
    of_tensors = connector(batch=tensors, episodes=block)[block.module_id]["rewards"]
    np.testing.assert_allclose(of_tensors.numpy(), got, rtol=1e-6)
    assert of_tensors.dtype == torch.float32
    assert rewards.tolist() == [0, 1, 2]


@pytest.mark.parametrize("connector", [ClipRewards(), ScaleRewards()], ids=lambda connector: type(connector).__name__)
def test_without_an_array_of_rewards(connector: Any) -> None:
    block = block_from_episodes([episode_of("a", 3)])
    for batch in ({}, {block.module_id: {}}, {"rewards": {("a", 0): [1.0, 2.0, 3.0]}}):
        with pytest.raises(TypeError, match=f"{type(connector).__name__} needs column 'rewards' as an array or tensor"):
            connector(batch=batch, episodes=block)


def test_arguments() -> None:
    with pytest.raises(ValueError, match=r"low must not be above high, got low=2\.0, high=1\.0"):
        ClipRewards(2.0, 1.0)
    with pytest.raises(ValueError, match="clip must be positive"):
        ScaleRewards(clip=0.0)


# -- the running scale -------------------------------------------------------------------------------------------------


def chunks_of(episodes: Sequence[Sequence[float]], sizes: Sequence[int]) -> list[ColumnBlock]:
    """Blocks in each of which every episode goes on by so many steps; the last step of each episode terminates."""
    blocks = []
    done = [0] * len(episodes)
    for size in [*sizes, 1000]:
        parts = []
        for number, rewards in enumerate(episodes):
            part = list(rewards[done[number] : done[number] + size])
            if part:
                is_last = done[number] + len(part) == len(rewards)
                episode = episode_of(str(number), len(part), terminated=is_last, t_started=done[number])
                block = block_from_episodes([episode])
                block.columns["rewards"][:] = part
                block.is_truncated[:] = False
                parts.append(block)
            done[number] += len(part)
        if parts:
            blocks.append(concat_blocks(parts))
    return blocks


def scaled(connector: ScaleRewards, block: ColumnBlock) -> Any:
    return connector(batch={"rewards": block.columns["rewards"]}, episodes=block)["rewards"]


def discounted_returns(episodes: Sequence[Sequence[float]], gamma: float) -> list[list[float]]:
    returns = []
    for rewards in episodes:
        value, values = 0.0, []
        for reward in rewards:
            value = gamma * value + reward
            values.append(value)
        returns.append(values)
    return returns


episode_lists = st.lists(st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=12), min_size=1, max_size=5)


@given(episodes=episode_lists, sizes=st.lists(st.integers(1, 5), max_size=4), gamma=st.sampled_from([0.0, 0.9, 1.0]))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_the_scale_is_the_deviation_of_discounted_returns(
    episodes: list[list[float]], sizes: list[int], gamma: float
) -> None:
    connector = ScaleRewards(gamma=gamma, clip=None)
    returns = discounted_returns(episodes, gamma)
    seen: list[float] = []
    done = 0
    for block, size in zip(chunks_of(episodes, sizes), [*sizes, 1000], strict=False):
        seen += [value for values in returns for value in values[done : done + size]]
        done += size
        std = np.std(seen)
        rewards = block.columns["rewards"]
        expected = rewards / std if std > 1e-8 else rewards
        np.testing.assert_allclose(scaled(connector, block), expected, rtol=1e-5)
    state = connector.get_state()
    assert state["own_count"] == len(seen)
    np.testing.assert_allclose(state["own_mean"], np.mean(seen), atol=1e-9)
    assert state["open_ids"] == []


def test_chunks_of_one_episode_may_lie_in_one_block_in_any_order() -> None:
    episodes = [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]
    one, two, three = chunks_of(episodes, [2, 3])
    connectors = [ScaleRewards(gamma=0.5), ScaleRewards(gamma=0.5)]
    scaled(connectors[0], concat_blocks([three, one, two]))
    for block in (one, two, three):
        scaled(connectors[1], block)
    states = [connector.get_state() for connector in connectors]
    assert states[0]["own_count"] == states[1]["own_count"] == 6
    np.testing.assert_allclose(states[0]["own_mean"], np.mean(discounted_returns(episodes, 0.5)))
    np.testing.assert_allclose(states[0]["own_m2"], states[1]["own_m2"])


def test_an_episode_with_a_gap_starts_again() -> None:
    first, _, third = chunks_of([[1.0, 1.0, 1.0, 1.0, 1.0]], [2, 1])
    connector = ScaleRewards(gamma=0.5)
    scaled(connector, first)
    assert connector.get_state()["open_t"].tolist() == [2]
    scaled(connector, third)
    np.testing.assert_allclose(connector.get_state()["own_mean"], np.mean([1.0, 1.5, 1.0, 1.5]))


def test_result_is_clipped() -> None:
    connector = ScaleRewards(gamma=0.0, clip=1.5)
    (block,) = chunks_of([[0.0, 0.0, 0.0, 8.0, -8.0]], [])
    assert scaled(connector, block).tolist() == [0, 0, 0, 1.5, -1.5]


def test_equal_rewards_stay_finite() -> None:
    blocks = chunks_of([[0.0, 0.0], [2.0]], [1])
    connector = ScaleRewards(gamma=0.0)
    assert scaled(connector, chunks_of([[3.0], [3.0]], [])[0]).tolist() == [3, 3]
    assert np.isfinite(np.concatenate([scaled(connector, block) for block in blocks])).all()


def test_frozen_scale_learns_nothing() -> None:
    first, second = chunks_of([[1.0, 2.0, 3.0, 4.0]], [2])
    connector = ScaleRewards()
    scaled(connector, first)
    before = connector.get_state()
    connector.freeze()
    scaled(connector, second)
    assert connector.get_state() == before


def test_state_goes_on_within_an_episode() -> None:
    blocks = chunks_of([[1.0, 2.0, 3.0, 4.0], [5.0, -1.0]], [1, 2])
    straight, connector = ScaleRewards(), ScaleRewards()
    expected = [scaled(straight, block).tolist() for block in blocks]
    got = []
    for block in blocks:
        other = ScaleRewards()
        other.set_state(connector.get_state())
        connector = other
        got.append(scaled(connector, block).tolist())
    assert got == expected


@given(episodes=episode_lists, sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3), split=st.integers(0, 31))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_merged_states_count_each_step_once(episodes: list[list[float]], sizes: list[int], split: int) -> None:
    """Several learners; episodes go on at another one after each merge."""
    learners = [ScaleRewards(gamma=0.9) for _ in range(2)]
    for number, block in enumerate(chunks_of(episodes, sizes)):
        for chunk, episode in enumerate(block):
            index = (split >> ((chunk + number) % 5)) % 2
            part = block_from_episodes([episode])
            scaled(learners[index], part)
        merged = learners[0].merge_states([learner.get_state() for learner in learners])
        for learner in learners:
            learner.set_state(merged)
    returns = np.concatenate(discounted_returns(episodes, 0.9))
    assert merged["merged_count"] == len(returns)
    np.testing.assert_allclose(merged["merged_mean"], returns.mean(), atol=1e-6)
    np.testing.assert_allclose(merged["merged_m2"], ((returns - returns.mean()) ** 2).sum(), rtol=1e-5, atol=1e-6)


def test_lost_episodes_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_under_test, "_MAX_OPEN_EPISODES", 2)
    connector = ScaleRewards()
    scaled(connector, chunks_of([[1.0] * 3] * 4, [2])[0])
    assert connector.get_state()["open_ids"] == ["2", "3"]
