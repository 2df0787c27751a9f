"""Columns of sampled steps that are written back to a replay buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.checkpoints import load_checkpoint, save_checkpoint
from runner.episodes.columns import ColumnBlock, Rollout
from runner.replay import HindsightReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer, ShardedReplayBuffer

MODULE = "default_policy"


def rollout_of(first: int, num_steps: int, episode_id: str, is_terminated: bool = False) -> Rollout:
    """Return a chunk whose observations, actions and rewards are consecutive numbers from `first`."""
    numbers = np.arange(first, first + num_steps + 1)
    columns: dict[str, Any] = {
        "obs": numbers[:, None].astype(np.float32),
        "actions": numbers[:-1],
        "rewards": numbers[:-1].astype(np.float32),
        "latent": {"mean": np.zeros((num_steps, 2), np.float32), "std": np.ones((num_steps, 2), np.float32)},
    }
    block = ColumnBlock(
        columns=columns,
        lengths=np.array([num_steps]),
        is_terminated=np.array([is_terminated]),
        is_truncated=np.array([False]),
        t_started=np.array([0]),
        episode_ids=[episode_id],
    )
    return Rollout({MODULE: block}, num_steps)


def rewards_by_action(buffer: ReplayBuffer, num_steps: int = 4000) -> dict[int, float]:
    """Return action -> reward of the steps in a buffer; actions differ."""
    block = buffer.sample(num_steps).rollout.blocks[MODULE]
    return dict(zip(block.columns["actions"].tolist(), block.columns["rewards"].tolist(), strict=True))


@pytest.mark.parametrize("make", [ReplayBuffer, PrioritizedReplayBuffer])
def test_single_steps(make: type[ReplayBuffer]) -> None:
    buffer = make(100)
    buffer.add(rollout_of(0, 20, "a", is_terminated=True))
    sampled = buffer.sample(8)
    block = sampled.rollout.blocks[MODULE]
    latent = {"mean": np.full((8, 2), 3.0, np.float32), "std": np.full((8, 2), 4.0, np.float32)}
    buffer.write_columns(MODULE, sampled.rows[MODULE], {"rewards": -block.columns["rewards"], "latent": latent})
    changed = set(block.columns["actions"].tolist())
    found = rewards_by_action(buffer)
    assert len(found) == 20
    assert all(reward == (-action if action in changed else action) for action, reward in found.items())
    again = buffer.sample(200).rollout.blocks[MODULE]
    is_changed = np.isin(again.columns["actions"], list(changed))
    np.testing.assert_array_equal(again.columns["latent"]["mean"][:, 0], np.where(is_changed, 3.0, 0.0))
    np.testing.assert_array_equal(again.columns["latent"]["std"][:, 1], np.where(is_changed, 4.0, 1.0))


@pytest.mark.parametrize("burn_in_len", [0, 2])
def test_chunks(burn_in_len: int) -> None:
    buffer = ReplayBuffer(100, batch_length_T=4, burn_in_len=burn_in_len)
    for number in range(5):
        buffer.add(rollout_of(10 * number, 7, str(number), is_terminated=number % 2 == 0))
    sampled = buffer.sample(30)
    block = sampled.rollout.blocks[MODULE]
    is_trained = ~block.columns["is_burn_in"] if burn_in_len else np.ones(block.num_rows, np.bool_)
    lengths = np.add.reduceat(is_trained.astype(np.int64), block.offsets[:-1])
    actions = block.columns["actions"][is_trained]
    buffer.write_columns(MODULE, sampled.rows[MODULE], {"rewards": -actions.astype(np.float32)}, lengths)
    found = rewards_by_action(buffer)
    assert len(found) == 35
    assert all(reward == (-action if action in actions else action) for action, reward in found.items())


def test_overwritten_steps_are_skipped() -> None:
    buffer = ReplayBuffer(12, batch_length_T=3)
    buffer.add(rollout_of(0, 10, "a", is_terminated=True))
    sampled = buffer.sample(9)
    block = sampled.rollout.blocks[MODULE]
    buffer.add(rollout_of(100, 6, "b", is_terminated=True))  # replaces the first rows
    buffer.write_columns(MODULE, sampled.rows[MODULE], {"rewards": np.full(9, -1, np.float32)}, block.lengths)
    found = rewards_by_action(buffer)
    assert all(found[action] == action for action in range(100, 106)), "newer steps must keep their rewards"
    is_held = sampled.rows[MODULE] >= buffer._rings[MODULE].oldest  # the first step of the chunk
    changed = {action for action, reward in found.items() if reward == -1}
    assert changed == set(block.columns["actions"][is_held].tolist())
    assert 0 < np.count_nonzero(is_held) < 9, "some of the chunks must be held"


def test_shards() -> None:
    buffer = ShardedReplayBuffer(60, num_shards=3, batch_length_T=2)
    buffer.use_lookback({})
    for number in range(6):
        buffer.add(rollout_of(10 * number, 8, str(number), is_terminated=True))
    changed: set[int] = set()
    for _ in range(6):
        sampled = buffer.sample(10)
        block = sampled.rollout.blocks[MODULE]
        actions = block.columns["actions"]
        columns = {"rewards": -np.abs(actions).astype(np.float32)}
        buffer.write_columns(MODULE, sampled.rows[MODULE], columns, block.lengths)
        changed |= set(actions.tolist())
    buffer.sample(7)  # drops the sample that was drawn ahead
    found: dict[int, float] = {}
    for _ in range(9):
        found |= rewards_by_action(buffer, 1000)
    assert len(found) == 48
    assert all(reward == (-action if action in changed else action) for action, reward in found.items())


def test_checkpoints_contain_the_new_values(tmp_path: Path) -> None:
    """The second checkpoint does not reuse files of segments that were changed, and the first one keeps its values."""
    buffer = ReplayBuffer(5000)
    for number in range(4):
        buffer.add(rollout_of(1000 * number, 1000, str(number), is_terminated=True))
    first = buffer.get_state()
    save_checkpoint(tmp_path / "iteration_1", {"replay": first}, {})
    sampled = buffer.sample(50)
    values = np.full(50, -5, np.float32)
    shown = buffer.get_state()
    buffer.write_columns(MODULE, sampled.rows[MODULE], {"rewards": values})
    save_checkpoint(tmp_path / "iteration_2", {"replay": buffer.get_state()}, {})
    save_checkpoint(tmp_path / "before", {"replay": shown}, {})
    num_changed = len(set(sampled.rows[MODULE].tolist()))
    for name, expected in {"iteration_1": 0, "before": 0, "iteration_2": num_changed}.items():
        loaded = ReplayBuffer(5000)
        loaded.set_state(load_checkpoint(tmp_path / name)[0]["replay"])
        rewards = loaded._rings[MODULE].columns["rewards"]
        assert int((rewards == -5).sum()) == expected, name


def test_rewards_that_are_not_stored() -> None:
    """Sums over several steps and rewards of other goals must not replace the rewards of steps."""
    buffer = ReplayBuffer(100, n_step=3)
    buffer.add(rollout_of(0, 20, "a"))
    sampled = buffer.sample(6)
    with pytest.raises(ValueError, match="sums over n_step"):
        buffer.write_columns(MODULE, sampled.rows[MODULE], {"rewards": np.zeros(6, np.float32)})
    buffer.write_columns(MODULE, sampled.rows[MODULE], {"actions": np.zeros(6, np.int64)})
    with pytest.raises(ValueError, match="belong to other goals"):
        HindsightReplayBuffer(100).write_columns(MODULE, np.zeros(6, np.int64), {"rewards": np.zeros(6)})


def test_shards_check_before_they_write() -> None:
    buffer = ShardedReplayBuffer(60, num_shards=2)
    buffer.use_lookback({})
    buffer.add(rollout_of(0, 8, "a"))
    rows = buffer.sample(4).rows[MODULE]
    with pytest.raises(ValueError, match="column rewards: 5 values, but 4 rows"):
        buffer.write_columns(MODULE, rows, {"rewards": np.zeros(5, np.float32)})


@pytest.mark.parametrize(
    ("columns", "lengths", "message"),
    [
        ({"reward": np.zeros(6, np.float32)}, None, "reward is not a column of the steps.*actions, rewards, latent"),
        ({"obs": np.zeros((6, 1), np.float32)}, None, "obs is not a column"),
        ({"rewards": np.zeros(5, np.float32)}, None, "column rewards: 5 values, but 6 rows"),
        ({"rewards": np.zeros((6, 1), np.float32)}, None, r"got shape \(6, 1\), expected \(6,\)"),
        ({"rewards": np.zeros(6, np.float32)}, np.array([2, 3]), "5 steps in all, but 6 rows"),
    ],
)
def test_mistakes(columns: Any, lengths: Any, message: str) -> None:
    buffer = ReplayBuffer(100)
    buffer.add(rollout_of(0, 20, "a"))
    rows = buffer.sample(6).rows[MODULE]
    with pytest.raises(ValueError, match=message):
        buffer.write_columns(MODULE, rows, columns, lengths)


def test_chunks_need_lengths() -> None:
    buffer = ReplayBuffer(100, batch_length_T=2)
    buffer.add(rollout_of(0, 20, "a"))
    rows = buffer.sample(6).rows[MODULE]
    with pytest.raises(ValueError, match="`lengths` is needed"):
        buffer.write_columns(MODULE, rows, {"rewards": np.zeros(6, np.float32)})
