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
    NotReady,
    PlanContext,
    Replay,
    SelectExperiences,
    StoreToReplayBuffer,
    TrainResult,
    UpdatePriorities,
)
from runner.plans.item_state import item_from_state, item_to_state
from runner.replay import PrioritizedReplayBuffer, ReplayBuffer
from runner.streams import random_stream
from tests.plans.hand_made import ID, block_of, config_of, context_of, experiences_of, node_of, parts_of, raw


def with_buffer(buffer: ReplayBuffer | None = None) -> PlanContext:
    buffer = ReplayBuffer(100) if buffer is None else buffer
    buffer.use_stream(random_stream(0, "test"))
    return PlanContext(config_of("algorithm.train_batch_size_per_learner=6"), parts_of(buffer=buffer))


def test_what_is_stored_is_given_on_and_replayed_once_it_is_enough() -> None:
    context = with_buffer()
    items = [experiences_of(0, [4]), experiences_of(10, [4])]
    stored = StoreToReplayBuffer(context)(node_of(context, items))
    replay = Replay(context, learning_starts=8)
    assert raw(replay, 1) == [NotReady.FOR_QUEUE]
    assert next(stored) is items[0]
    assert raw(replay, 1) == [NotReady.FOR_QUEUE]
    assert next(stored) is items[1]
    (replayed,) = raw(replay, 1)
    assert replayed.num_env_steps == 6
    assert set(replayed.rollout.blocks[ID].columns["rewards"]) <= {0, 1, 2, 3, 10, 11, 12, 13}
    assert replay.get_state() == {"has_started": True}


def test_a_resumed_replay_waits_only_for_a_buffer_that_begins_anew() -> None:
    context = with_buffer()
    context.replay_buffers["replay"].add(experiences_of(0, [3]).rollout)
    replay = Replay(context, learning_starts=8)
    replay.set_state({"has_started": True})
    assert isinstance(next(replay), Experiences)
    waiting = Replay(with_buffer(), learning_starts=8)
    waiting.set_state({"has_started": True})
    assert raw(waiting, 1) == [NotReady.FOR_QUEUE]


def test_fractions_of_replayed_items_add_up() -> None:
    context = with_buffer()
    items = [experiences_of(10 * number, [5]) for number in range(5)]
    given = list(MixInReplay(context, replay_proportion=0.4)(node_of(context, items)))
    assert [bool(item.replay_rows) for item in given] == [False, False, False, True, False, False, True]
    assert {item.num_env_steps for item in given} == {5}


def test_items_pass_while_there_is_nothing_to_mix_in() -> None:
    context = with_buffer()
    items = [experiences_of(10 * number, [5]) for number in range(3)]
    mixed = MixInReplay(context, replay_proportion=1.0, store=False)(node_of(context, items))
    assert next(mixed) is items[0]
    context.replay_buffers["replay"].add(experiences_of(100, [5]).rollout)
    assert [bool(item.replay_rows) for item in mixed] == [False, True, False, True]


def test_a_module_that_has_not_acted_yet_is_waited_for() -> None:
    context = with_buffer()
    context.learners = SimpleNamespace(modules=dict.fromkeys((ID, "late")))  # type: ignore[assignment]
    buffer = context.replay_buffers["replay"]
    buffer.add(experiences_of(0, [8]).rollout)
    selected = SelectExperiences(context, modules=["late"])(Replay(context))
    assert raw(selected, 2) == [NotReady.FOR_QUEUE, NotReady.FOR_QUEUE]
    buffer.add(Rollout({"late": block_of(20, [3], "late")}, 3))
    (item,) = raw(selected, 1)
    assert list(item.rollout.blocks) == ["late"]
    buffer.set_state(with_buffer().replay_buffers["replay"].get_state())
    buffer.add(experiences_of(0, [8]).rollout)
    with pytest.raises(RunFailure, match="the plan is stuck"):
        next(selected)


def priorities_of(context: PlanContext) -> Any:
    buffer = context.replay_buffers["replay"]
    return buffer.get_state()["modules"][ID]["priorities"][0].values()["priorities"]


def test_errors_become_priorities_of_their_rows() -> None:
    context = with_buffer(PrioritizedReplayBuffer(100, alpha=1.0))
    context.replay_buffers["replay"].add(experiences_of(0, [8]).rollout)
    replay = Replay(context)
    both = ConcatBatches(context, min_env_steps=12)(node_of(context, islice(replay, 2)))
    item = next(both)
    rows = item.replay_rows["replay"][ID]
    assert item.rollout.blocks[ID].columns["rewards"].tolist() == rows.tolist(), "rows are in the order of the batch"
    result = TrainResult([{ID: {}}], 12, rows={ID: {"td_error": rows + 0.5}}, replay_rows=item.replay_rows)
    of_another = TrainResult([{ID: {}}], 12, rows={ID: {"td_error": rows * 0}}, replay_rows={"other": {ID: rows}})
    not_updated = TrainResult([], 12, replay_rows=item.replay_rows)
    results = [result, of_another, not_updated]
    assert list(UpdatePriorities(context)(node_of(context, results))) == results
    drawn = np.unique(rows)
    np.testing.assert_allclose(priorities_of(context)[drawn], drawn + 0.5, rtol=1e-5)


def test_a_loss_without_errors_is_named() -> None:
    context = with_buffer(PrioritizedReplayBuffer(100))
    context.replay_buffers["replay"].add(experiences_of(0, [8]).rollout)
    rows = next(Replay(context)).replay_rows
    flow = UpdatePriorities(context)(node_of(context, [TrainResult([{ID: {}}], 6, replay_rows=rows)]))
    with pytest.raises(RunFailure, match="needs td_error per row, and the loss of module default_policy lacks it"):
        next(flow)


def test_items_keep_their_rows_in_checkpoints() -> None:
    context = with_buffer()
    context.replay_buffers["replay"].add(experiences_of(0, [8]).rollout)
    item = next(Replay(context))
    again = item_from_state(item_to_state(item), context)
    assert isinstance(again, Experiences)
    np.testing.assert_array_equal(again.replay_rows["replay"][ID], item.replay_rows["replay"][ID])
    of_another = item_from_state(item_to_state(item), with_buffer())
    assert of_another.replay_rows == {}, "of a buffer that has begun anew"  # type: ignore[attr-defined, union-attr]


@pytest.mark.parametrize("item", [experiences_of(0, [3]), TrainResult([], 3)])
def test_items_of_checkpoints_without_replay_are_read(item: Any) -> None:
    state = item_to_state(item)
    del state["replay_rows"]
    assert item_from_state(state, context_of()).replay_rows == {}  # type: ignore[attr-defined, union-attr]
