"""Operators on replay buffers by hand-made items: what they store, give and wait for, and where errors go."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from runner.config.errors import RunFailure
from runner.episodes.columns import Rollout
from runner.plans import (
    ConcatBatches,
    Experiences,
    MixInReplay,
    Replay,
    Resources,
    SelectExperiences,
    StoreToReplayBuffer,
    TrainResult,
    UpdatePriorities,
    Waiting,
)
from runner.plans.item_state import item_from_state, item_to_state
from runner.replay import PrioritizedReplayBuffer, ReplayBuffer
from runner.streams import random_stream
from tests.plans.hand_made import ID, block_of, config_of, experiences_of, flow_of, raw, resources_of


def with_buffer(buffer: ReplayBuffer | None = None) -> Resources:
    resources = resources_of(config_of("algorithm.train_batch_size_per_learner=6"))
    resources.replay_buffers["replay"] = ReplayBuffer(100) if buffer is None else buffer
    resources.replay_buffers["replay"].use_stream(random_stream(0, "test"))
    return resources


def test_what_is_stored_is_given_on_and_replayed_once_it_is_enough() -> None:
    resources = with_buffer()
    items = [experiences_of(0, [4]), experiences_of(10, [4])]
    stored = StoreToReplayBuffer(resources)(flow_of(resources, items))
    replay = Replay(resources, learning_starts=8)
    assert raw(replay, 1) == [Waiting.FOR_QUEUE]
    assert next(stored) is items[0]
    assert raw(replay, 1) == [Waiting.FOR_QUEUE]
    assert next(stored) is items[1]
    (replayed,) = raw(replay, 1)
    assert replayed.num_env_steps == 6
    assert set(replayed.rollout.blocks[ID].columns["rewards"]) <= {0, 1, 2, 3, 10, 11, 12, 13}
    assert replay.get_state() == {"has_started": True}


def test_a_resumed_replay_waits_only_for_a_buffer_that_begins_anew() -> None:
    resources = with_buffer()
    resources.replay_buffers["replay"].add(experiences_of(0, [3]).rollout)
    replay = Replay(resources, learning_starts=8)
    replay.set_state({"has_started": True})
    assert isinstance(next(replay), Experiences)
    waiting = Replay(with_buffer(), learning_starts=8)
    waiting.set_state({"has_started": True})
    assert raw(waiting, 1) == [Waiting.FOR_QUEUE]


def test_fractions_of_replayed_items_add_up() -> None:
    resources = with_buffer()
    items = [experiences_of(10 * number, [5]) for number in range(5)]
    given = list(MixInReplay(resources, replay_proportion=0.4)(flow_of(resources, items)))
    assert [bool(item.replay_rows) for item in given] == [False, False, False, True, False, False, True]
    assert {item.num_env_steps for item in given} == {5}


def test_a_module_that_has_not_acted_yet_is_waited_for() -> None:
    resources = with_buffer()
    resources.learners = SimpleNamespace(modules=dict.fromkeys((ID, "late")))  # type: ignore[assignment]
    buffer = resources.replay_buffers["replay"]
    buffer.add(experiences_of(0, [8]).rollout)
    selected = SelectExperiences(resources, modules=["late"])(Replay(resources))
    assert raw(selected, 2) == [Waiting.FOR_QUEUE, Waiting.FOR_QUEUE]
    buffer.add(Rollout({"late": block_of(20, [3], "late")}, 3))
    (item,) = raw(selected, 1)
    assert list(item.rollout.blocks) == ["late"]
    buffer.set_state(with_buffer().replay_buffers["replay"].get_state())
    buffer.add(experiences_of(0, [8]).rollout)
    with pytest.raises(RunFailure, match="the plan stands still"):
        next(selected)


def priorities_of(resources: Resources) -> Any:
    buffer = resources.replay_buffers["replay"]
    return buffer.get_state()["modules"][ID]["priorities"][0].values()["priorities"]


def test_errors_become_priorities_of_their_rows() -> None:
    resources = with_buffer(PrioritizedReplayBuffer(100, alpha=1.0))
    resources.replay_buffers["replay"].add(experiences_of(0, [8]).rollout)
    replay = Replay(resources)
    both = ConcatBatches(resources, min_env_steps=12)(flow_of(resources, islice(replay, 2)))
    item = next(both)
    rows = item.replay_rows["replay"][ID]
    assert item.rollout.blocks[ID].columns["rewards"].tolist() == rows.tolist(), "rows are in the order of the batch"
    result = TrainResult([{ID: {}}], 12, rows={ID: {"td_error": rows + 0.5}}, replay_rows=item.replay_rows)
    of_another = TrainResult([{ID: {}}], 12, rows={ID: {"td_error": rows * 0}}, replay_rows={"other": {ID: rows}})
    not_updated = TrainResult([], 12, replay_rows=item.replay_rows)
    results = [result, of_another, not_updated]
    assert list(UpdatePriorities(resources)(flow_of(resources, results))) == results
    drawn = np.unique(rows)
    np.testing.assert_allclose(priorities_of(resources)[drawn], drawn + 0.5, rtol=1e-5)


def test_a_loss_without_errors_is_named() -> None:
    resources = with_buffer(PrioritizedReplayBuffer(100))
    resources.replay_buffers["replay"].add(experiences_of(0, [8]).rollout)
    rows = next(Replay(resources)).replay_rows
    flow = UpdatePriorities(resources)(flow_of(resources, [TrainResult([{ID: {}}], 6, replay_rows=rows)]))
    with pytest.raises(RunFailure, match="finds no td_error of module default_policy"):
        next(flow)


def test_items_keep_their_rows_in_checkpoints() -> None:
    resources = with_buffer()
    resources.replay_buffers["replay"].add(experiences_of(0, [8]).rollout)
    item = next(Replay(resources))
    again = item_from_state(item_to_state(item), resources)
    assert isinstance(again, Experiences)
    np.testing.assert_array_equal(again.replay_rows["replay"][ID], item.replay_rows["replay"][ID])
    of_another = item_from_state(item_to_state(item), with_buffer())
    assert of_another.replay_rows == {}, "of a buffer that has begun anew"  # type: ignore[attr-defined, union-attr]


@pytest.mark.parametrize("item", [experiences_of(0, [3]), TrainResult([], 3)])
def test_items_of_checkpoints_without_replay_are_read(item: Any) -> None:
    state = item_to_state(item)
    del state["replay_rows"]
    assert item_from_state(state, resources_of()).replay_rows == {}  # type: ignore[attr-defined, union-attr]
