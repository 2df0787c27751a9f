"""Replay in shards: turns, priorities, loss of a process, and the same samples in this process and in Ray actors."""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from runner.checkpoints import load_checkpoint, save_checkpoint
from runner.cluster.actor_group import ActorGroup
from runner.cluster.actors import Actor
from runner.config.errors import RunFailure
from runner.episodes.columns import Rollout
from runner.experiment.replay_shards import REPLAY, shard_group
from runner.interrupts import Budget, is_interrupted, within
from runner.replay import BufferEmpty, ShardedReplayBuffer
from runner.replay.shards import LocalShards, MakeShard, MakeShards, ReplayShard
from runner.restarts import Restarts
from runner.streams import random_stream
from tests.conftest import marked_but
from tests.replay.test_replay_buffer import ID, rollout_of


def remote(num_restarts: int = 100) -> MakeShards:
    """Shards in Ray actors, of which a dead one begins empty."""
    return partial(shard_group, restarts=Restarts(num_restarts, "keys"), replay=None)


def restored(num_restarts: int = 100, calls_per_snapshot: int = REPLAY.calls_per_snapshot) -> MakeShards:
    """Shards in Ray actors, of which a dead one is restored."""
    replay = replace(REPLAY, calls_per_snapshot=calls_per_snapshot)
    return partial(shard_group, restarts=Restarts(num_restarts, "keys"), replay=replay)


def sharded(shards: MakeShards = LocalShards, **arguments: Any) -> ShardedReplayBuffer:
    buffer = ShardedReplayBuffer(90, **{"num_shards": 3, "alpha": 1.0, "shards": shards, **arguments})
    buffer.use_stream(random_stream(0, "test"))
    buffer.use_lookback({ID: 0})
    return buffer


def filled(shards: MakeShards = LocalShards) -> ShardedReplayBuffer:
    """Episodes 0, 1, 2 are in shards 0, 1, 2, and so are 3, 4, 5."""
    buffer = sharded(shards)
    for number in range(6):
        buffer.add(rollout_of(f"episode {number}", first=number))
    return buffer


def episodes_of(replayed: Any) -> set[int]:
    return set((replayed.rollout.blocks[ID].columns["actions"] // 100).tolist())


def played(buffer: ShardedReplayBuffer, num_samples: int = 7) -> list[Any]:
    """Sample, update, and write in turn; returns what was sampled."""
    seen: list[Any] = []
    for number in range(num_samples):
        replayed = buffer.sample(8, number)
        columns = replayed.rollout.blocks[ID].columns
        seen.append([column.tolist() for _, column in sorted(columns.items())] + [replayed.rows[ID].tolist()])
        buffer.update_priorities(ID, replayed.rows[ID], columns["actions"] / 100.0)
        buffer.add(rollout_of(f"later {number}", first=10 + number))
    seen.append(buffer.metrics())
    return seen


def test_samples_are_of_each_shard_in_turn() -> None:
    buffer = filled()
    assert len(buffer) == 30
    assert buffer.module_ids == [ID]
    assert [episodes_of(buffer.sample(50)) for _ in range(4)] == [{0, 3}, {1, 4}, {2, 5}, {0, 3}]


def test_an_episode_stays_in_its_shard() -> None:
    """Fragments of episodes that go on are as in one buffer, so that targets over several steps are, too."""
    buffer = sharded(n_step=3)
    whole = [rollout_of("a", "b", length=12, first=0), rollout_of("c", length=12, first=2)]
    for start in range(0, 12, 2):
        for rollout in whole:
            buffer.add(part_of(rollout, start, start + 2))
    assert len(buffer) == 36
    assert len(buffer._shard_of) == 0, "all have ended"
    columns = [buffer.sample(200).rollout.blocks[ID].columns for _ in range(3)]
    n_steps = np.concatenate([one["n_step"] for one in columns])
    assert set(n_steps.tolist()) == {1, 2, 3}
    assert (n_steps == 3).mean() > 0.7, "only the last two steps of an episode have fewer"


def part_of(rollout: Rollout, start: int, stop: int) -> Rollout:
    """Steps `start` to `stop` of each episode of 12 steps."""
    [block] = rollout.blocks.values()
    steps = np.arange(start, stop)
    rows = (12 * np.arange(len(block))[:, None] + steps).reshape(-1)
    obs_rows = (13 * np.arange(len(block))[:, None] + np.arange(start, stop + 1)).reshape(-1)
    part = replace(
        block,
        columns={name: column[obs_rows if name == "obs" else rows] for name, column in block.columns.items()},
        lengths=np.full(len(block), stop - start),
        is_terminated=np.full(len(block), stop == 12),
        t_started=np.full(len(block), start),
    )
    return Rollout({ID: part}, part.num_rows)


def test_errors_of_several_samples_reach_their_shards() -> None:
    buffer = filled()
    samples = [buffer.sample(20) for _ in range(3)]
    rows = np.concatenate([one.rows[ID] for one in samples])
    actions = np.concatenate([one.rollout.blocks[ID].columns["actions"] for one in samples])
    buffer.update_priorities(ID, rows, (actions >= 300).astype(float))
    for _ in range(3):
        buffer.sample(1)  # drawn before the update
    for number in range(3):
        assert episodes_of(buffer.sample(30)) <= {3, 4, 5}, number


def test_samples_of_other_sizes_skip_no_shard() -> None:
    buffer = filled()
    assert [sorted(episodes_of(buffer.sample(30 + number % 2)))[0] for number in range(6)] == [0, 1, 2, 0, 1, 2]


def test_an_update_reaches_the_shard_of_its_sample() -> None:
    buffer = filled()
    for _ in range(3):
        replayed = buffer.sample(30)
        errors = (replayed.rollout.blocks[ID].columns["actions"] >= 300).astype(float)  # episodes 3, 4 and 5 alone
        buffer.update_priorities(ID, replayed.rows[ID], errors)
    for _ in range(3):
        buffer.sample(1)  # drawn before the updates
    for number in range(3):
        assert episodes_of(buffer.sample(30)) <= {3 + (number + 1) % 3, 3 + number, 3 + (number + 2) % 3}
    with pytest.raises(RunFailure, match="not finite"):
        buffer.update_priorities(ID, replayed.rows[ID], np.full(30, np.nan))


def test_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="num_shards must be a positive integer, got 0"):
        ShardedReplayBuffer(num_shards=0)
    with pytest.raises(BufferEmpty):
        sharded().sample(1)


def test_a_resumed_buffer_goes_on_with_the_sample_that_was_drawn_ahead(tmp_path: Path) -> None:
    buffer = filled()
    played(buffer, 3)
    save_checkpoint(tmp_path / "checkpoint", {"replay": buffer.get_state()}, {})
    straight = played(buffer)
    resumed = sharded()
    resumed.set_state(load_checkpoint(tmp_path / "checkpoint")[0]["replay"])
    assert played(resumed) == straight


@pytest.mark.ray
def test_the_same_in_this_process_and_in_actors(ray_cluster: None, tmp_path: Path) -> None:
    here, there = filled(), filled(remote())
    assert played(here) == played(there)
    save_checkpoint(tmp_path / "checkpoint", {"replay": there.get_state()}, {})
    resumed = sharded(remote())
    resumed.set_state(load_checkpoint(tmp_path / "checkpoint")[0]["replay"])
    straight = played(here)
    assert played(there) == straight
    assert played(resumed) == straight
    for buffer in (there, resumed):
        buffer.close()


@pytest.mark.ray
@pytest.mark.parametrize("lost", [[0], [2], [0, 1, 2]], ids=str)
def test_a_shard_that_is_lost_begins_anew(lost: list[int], ray_cluster: None) -> None:
    buffer = sharded(remote())
    for number in range(6):
        buffer.add(rollout_of(f"episode {number}", first=number))
    replayed = buffer.sample(8)
    for index in lost:
        caller_of(buffer, index).close()  # kills the actor
    state = buffer.get_state()
    assert len(buffer) == 30 - 10 * len(lost), "a checkpoint goes on without the lost ones"
    assert state["num_restarts"] == len(lost)
    seen: list[int] = []
    for number in range(12):
        buffer.update_priorities(ID, replayed.rows[ID], np.ones(8))
        buffer.add(rollout_of(f"later {number}", first=10 + number))
        with suppress(BufferEmpty):  # until something is written to a shard that has begun anew
            replayed = buffer.sample(8)
            seen += sorted(episodes_of(replayed))
    assert buffer.metrics()["num_shard_restarts"] == len(lost), "each is replaced once"
    assert set(seen[-16:]) & set(range(10, 22)), "later experiences are sampled"
    if len(lost) == 1:
        assert set(seen) & set(range(6)), "other shards kept theirs"
    buffer.close()


def caller_of(buffer: ShardedReplayBuffer, index: int) -> Any:
    return cast(ActorGroup, buffer._shards).callers[index]


def kill(buffer: ShardedReplayBuffer, index: int) -> None:
    """Kill the actor of a shard, which may answer a call until it is gone."""
    import ray

    actor = caller_of(buffer, index).actor
    ray.kill(actor)
    with suppress(ray.exceptions.ActorDiedError):
        while True:
            ray.get(actor.call.remote("__len__"))


def without_restarts(seen: list[Any]) -> list[Any]:
    """What `played` returns, without the number of restarts in the metrics."""
    return [*seen[:-1], {name: value for name, value in seen[-1].items() if name != "num_shard_restarts"}]


@pytest.mark.ray
@pytest.mark.parametrize("calls_per_snapshot", marked_but(pytest.mark.slow, [1000, 4, 1], 4))
def test_a_restored_shard_that_is_lost_goes_on_as_if_it_had_not_been(
    calls_per_snapshot: int, ray_cluster: None
) -> None:
    """A sample that was drawn ahead is waited for when it is lost; snapshots may be in the making."""
    undisturbed, buffer = filled(), filled(restored(calls_per_snapshot=calls_per_snapshot))
    len(buffer)  # all actors have started
    for number in range(4):
        for index in {number % 3, number % 2}:
            kill(buffer, index)
        assert without_restarts(played(buffer, 3)) == without_restarts(played(undisturbed, 3)), number
    assert buffer.metrics()["num_shard_restarts"] == 6
    buffer.close()


@pytest.mark.ray
def test_a_restored_shard_is_restored_from_the_state_that_it_was_given(ray_cluster: None) -> None:
    buffer = filled()
    played(buffer, 3)
    state = buffer.get_state()
    resumed = sharded(restored())
    resumed.set_state(state)
    for index in range(3):
        kill(resumed, index)
    assert without_restarts(played(resumed)) == without_restarts(played(buffer))
    resumed.close()


@pytest.mark.ray
def test_a_restored_shard_without_snapshots_begins_anew(ray_cluster: None) -> None:
    """As where a node is lost that had them."""
    import ray

    buffer = filled(restored(calls_per_snapshot=1))
    assert [len(buffer) for _ in range(3)] == [30, 30, 30]
    shard = caller_of(buffer, 0)
    assert all(period.snapshot is not None for period in shard._periods)
    gone = ray.remote(num_cpus=0)(Actor).remote(dict)
    ray.kill(gone)
    for period in shard._periods:
        period.snapshot = gone.call.remote("copy")
    kill(buffer, 0)
    assert len(buffer) == 20
    buffer.close()


@pytest.mark.ray
def test_a_snapshot_that_failed_is_passed_over(ray_cluster: None) -> None:
    undisturbed, buffer = filled(), filled(restored(calls_per_snapshot=4))
    played(buffer, 3), played(undisturbed, 3)
    shard = caller_of(buffer, 0)
    for number in itertools.count():
        if len(shard._periods) > 1:
            break
        for one in (undisturbed, buffer):
            one.add(rollout_of(f"more {number}", first=number))
    shard._periods[-1].is_made = shard.actor.call.remote("no_such_method")
    kill(buffer, 0)
    assert without_restarts(played(buffer)) == without_restarts(played(undisturbed))
    buffer.close()


@pytest.mark.ray
def test_a_restored_shard_that_is_lost_too_often_ends_the_run(ray_cluster: None) -> None:
    buffer = filled(restored(num_restarts=1))
    kill(buffer, 1)
    assert len(buffer) == 30
    kill(buffer, 1)
    with pytest.raises(RunFailure, match=r"replay shard 1 on [\d.]+ died .*, and the only allowed restart"):
        len(buffer)
    buffer.close()


class SlowShard(ReplayShard):
    """A shard whose state is large."""

    def get_state(self, has_experiences: bool = True) -> dict[str, Any]:
        time.sleep(0.7)
        return super().get_state(has_experiences)


def slow_shards(make_shard: MakeShard, num_shards: int) -> ActorGroup:
    """Shards in Ray actors that make their states slowly."""
    return remote()(lambda index, generation: SlowShard(30), num_shards)


@pytest.mark.ray
def test_a_run_that_is_asked_to_end_waits_for_its_shards(ray_cluster: None) -> None:
    """An abandoned call would be missing in the last checkpoint, and an abandoned `get_state` the checkpoint itself."""
    buffer = sharded(slow_shards)
    with within(Budget("0 s", 0.0)):
        assert is_interrupted()
        for number in range(6):
            buffer.add(rollout_of(f"episode {number}", first=number))
        state = buffer.get_state()
    assert state["held"] == [[ID]] * 3
    assert len(buffer) == 30
    buffer.close()
