"""Steps of plans: items of any value, ends of iterators, nodes that are used again, and items that cannot be saved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest

from runner.learners.update_results import UpdateResult
from runner.plans import Concurrently, Enqueue, Operator, Plan, PlanContext, Source, TrainOneStep
from runner.plans.item_state import UnstorableItem
from tests.plans.hand_made import Given, config_of, context_of, experiences_of, node_of, parts_of, results_of


def test_none_is_an_item_like_others() -> None:
    context = context_of()
    nothing = node_of(context, range(9)).for_each(lambda item: None)
    numbers = node_of(context, range(100, 109))
    assert list(islice(Concurrently([nothing, numbers]), 4)) == [None, 100, None, 101]


class _Iterated(Source):
    """Polls an iterator, which ends with `StopIteration`."""

    def __init__(self, context: PlanContext) -> None:
        super().__init__(context)
        self._numbers = iter(range(3))

    def poll(self) -> int:
        return next(self._numbers)


def test_the_end_of_an_iterator_ends_a_source() -> None:
    assert list(_Iterated(context_of())) == [0, 1, 2]


class _Faulty(Operator):
    """Asks an empty iterator for an item."""

    def transform(self, item: Any) -> list[Any]:
        return [next(iter(()))]


def test_the_end_of_an_iterator_in_an_operator_is_an_error() -> None:
    context = context_of()
    with pytest.raises(RuntimeError, match=r"_Faulty.transform raised StopIteration"):
        list(_Faulty(context)(node_of(context, results_of(3))))


def test_a_node_that_was_asked_for_items_keeps_the_others() -> None:
    context = context_of()
    node = node_of(context, [1, 2]).combine(lambda item: [item, 10 * item, 100 * item])
    assert next(node) == 1
    assert list(node.for_each(lambda item: item + 1)) == [11, 101, 3, 21, 201]


class _KeepsAll(Operator):
    """Gives each item three times."""

    def transform(self, item: Any) -> list[Any]:
        return [item] * 3


def test_items_of_a_node_that_two_branches_read_are_saved_once() -> None:
    def made() -> tuple[Given, Plan]:
        context = context_of()
        source = Given(context, results_of(9))
        branches = [_KeepsAll(context)(source), _KeepsAll(context)(source)]
        return source, Plan(Concurrently(branches), context)

    _, straight = made()
    expected = [item.num_env_steps_trained for item in islice(straight, 12)]
    for number in range(1, 12):
        source, plan = made()
        given = [item.num_env_steps_trained for item in islice(plan, number)]
        other, resumed = made()
        for _ in range(source.num_asked):
            other.poll()
        resumed.set_state(plan.get_state())
        given += [item.num_env_steps_trained for item in islice(resumed, 12 - number)]
        assert given == expected, f"saved after {number} items"


def test_a_plan_with_a_custom_item_in_a_queue_is_not_saved_midway() -> None:
    context = context_of()
    plan = Plan(Enqueue(context, queue="q", capacity=2)(node_of(context, ["text"])), context)
    assert plan.can_be_saved
    next(plan)
    assert not plan.can_be_saved
    with pytest.raises(UnstorableItem, match="a checkpoint cannot hold the waiting item of class str"):
        plan.get_state()


class _Learners:
    """Learners whose updates tell the rows that they are made on."""

    def send(self, rollout: Any) -> Any:
        return rollout

    def begin_update(self, sent: Any, num_env_steps: int) -> Any:
        first = float(sent.blocks["default_policy"].columns["rewards"][0])
        return lambda: UpdateResult({"default_policy": {"first": first, "told": float(num_env_steps)}}, 0.0, 0.0)

    def get_weights(self) -> dict[str, Any]:
        return {}


def _prefetching() -> tuple[Given, Plan, PlanContext]:
    config = config_of()
    config = replace(config, learners=replace(config.learners, prefetch=True))
    context = PlanContext(config, parts_of(_Learners()))
    source = Given(context, _counting(context))
    return source, Plan(TrainOneStep(context)(source), context), context


def _counting(context: PlanContext) -> Iterator[Any]:
    for number in range(6):
        context.metrics.num_env_steps_sampled_lifetime += 4
        yield experiences_of(10 * number, [4])


def test_the_item_ahead_directly_behind_a_source_is_saved() -> None:
    _, plan, _ = _prefetching()
    expected = [item.updates for item in plan]
    assert [updates[0]["default_policy"]["first"] for updates in expected] == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
    for number in range(1, 6):
        source, plan, context = _prefetching()
        given = [item.updates for item in islice(plan, number)]
        other, resumed, resumed_context = _prefetching()
        for _ in range(source.num_asked):
            other.poll()
        resumed_context.metrics.num_env_steps_sampled_lifetime = context.metrics.num_env_steps_sampled_lifetime
        resumed.set_state(plan.get_state())
        assert given + [item.updates for item in resumed] == expected, f"saved after {number} updates"


def test_prefetch_of_something_else_than_experiences_names_its_key() -> None:
    _, _, context = _prefetching()
    with pytest.raises(Exception, match=r"learners.prefetch=false"):
        list(TrainOneStep(context)(node_of(context, [SimpleNamespace()])))
