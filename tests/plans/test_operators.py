"""Each operator by hand-made items: what it gives, when, and what it asks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config.errors import ConfigError, RunFailure
from runner.episodes.columns import Rollout
from runner.learners.gradients import GroupGradients, ModuleGradient
from runner.plans import (
    ApplyGradients,
    AverageGradients,
    CompleteEpisodes,
    ComputeGradients,
    ConcatBatches,
    Concurrently,
    DebugPrint,
    Dequeue,
    Duplicate,
    Enqueue,
    Experiences,
    Gradients,
    IterationEnd,
    Node,
    NotReady,
    Operator,
    Origin,
    Plan,
    PlanContext,
    SelectExperiences,
    StandardizeFields,
    StandardMetricsReporting,
    TrainOneStep,
    TrainResult,
    UpdateTargetNetwork,
)
from tests.plans.hand_made import (
    ID,
    WAITING,
    Given,
    Sent,
    block_of,
    config_of,
    context_of,
    experiences_of,
    learners_of,
    node_of,
    raw,
    results_of,
    sent_of,
)

# -- experiences ---------------------------------------------------------------------------------------------------


def _joined(items: list[Experiences], min_env_steps: int) -> list[list[Experiences]]:
    """The parts of each batch: as few as hold so many steps; those left over make none."""
    batches: list[list[Experiences]] = []
    batch: list[Experiences] = []
    for item in items:
        batch = [*batch, item]
        if sum(one.num_env_steps for one in batch) >= min_env_steps:
            batches, batch = [*batches, batch], []
    return batches


@given(
    lengths=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=12),
    min_env_steps=st.integers(1, 20),
)
def test_concat_batches_neither_loses_nor_doubles_rows(lengths: list[list[int]], min_env_steps: int) -> None:
    items, row = [], 0
    for number, one in enumerate(lengths):
        items.append(experiences_of(row, one, runner=number))
        row += sum(one)
    context = context_of()
    source = Given(context, items)
    batches = source.combine(ConcatBatches(context, min_env_steps=min_env_steps))
    assert source.num_asked == 0, "nothing runs before a batch is asked for"
    seen: list[float] = []
    for expected in _joined(items, min_env_steps):
        num_asked = source.num_asked
        item = next(batches)
        batch = item.rollout.blocks[ID]
        assert source.num_asked - num_asked == len(expected), "no more than it needs"
        assert item.num_env_steps == batch.num_rows == sum(one.num_env_steps for one in expected)
        assert item.origins == tuple(origin for one in expected for origin in one.origins)
        seen += batch.columns["rewards"].tolist()
    assert seen == list(range(len(seen)))
    assert list(batches) == [], "what is left is no batch"
    assert row - len(seen) < min_env_steps


@pytest.mark.parametrize(("learners", "least"), [(0, 40), (2, 80)])
def test_concat_batches_of_all_learners(learners: int, least: int) -> None:
    context = context_of(config_of(f"learners.num_learners={learners}"))
    items = (experiences_of(10 * number, [10]) for number in count())
    assert next(ConcatBatches(context)(items)).num_env_steps == least


def _part(id_: str, is_done: bool) -> Rollout:
    """Two steps of an episode."""
    block = replace(block_of(0, [2]), episode_ids=[id_], is_terminated=np.array([is_done]))
    return Rollout({ID: block}, 2)


def test_complete_episodes_are_given_when_they_end() -> None:
    context = context_of(env_runners=Sent())
    parts = [("a", False), ("b", True), ("a", False), ("a", True)]
    items = [Experiences(_part(*one), (Origin(0, number, 2),)) for number, one in enumerate(parts)]
    source = Given(context, items)
    given_on = CompleteEpisodes(context)(source)
    first = next(given_on)
    assert (source.num_asked, first.rollout.blocks[ID].episode_ids, first.num_env_steps) == (2, ["b"], 2)
    second = next(given_on)
    assert (source.num_asked, second.rollout.blocks[ID].episode_ids, second.num_env_steps) == (4, ["a"], 6)
    assert {origin.weights_seq_no for origin in second.origins} == {1, 2, 3}


def test_episodes_of_a_runner_that_was_lost_are_dropped() -> None:
    runners = Sent()
    first, lost, other, new = "0-env_runner-0-0-0", "0-env_runner-1-0-0", "0-client-1", "0-env_runner-1.1-0-0"

    def items() -> Iterator[Experiences]:
        for id_ in (first, lost, other):
            yield Experiences(_part(id_, False))
        runners.actors.generations = [0, 1]
        for id_, is_done in ((new, True), (first, True), (other, True)):
            yield Experiences(_part(id_, is_done))

    operator = CompleteEpisodes(context_of(env_runners=runners))
    given_on = [(item.rollout.blocks[ID].episode_ids, item.num_env_steps) for item in operator(items())]
    assert given_on == [([new], 2), ([first], 4), ([other], 4)], "steps that are dropped count nowhere"
    state = operator.get_state()["episodes"]
    assert (state["running"], state["num_env_steps"]) == ({}, 0)


def test_select_experiences_keeps_modules_and_drops_what_has_none() -> None:
    blocks = {name: block_of(0, [3], name) for name in ("left", "right")}
    items = [
        Experiences(Rollout(blocks, 3)),
        Experiences(Rollout({"right": blocks["right"]}, 3)),
        Experiences(Rollout({"left": blocks["left"]}, 3)),
    ]
    context = context_of(learners=_Targets())
    kept = list(SelectExperiences(context, modules=["left"])(items))
    assert [list(item.rollout.blocks) for item in kept] == [["left"], ["left"]]
    assert [item.num_env_steps for item in kept] == [3, 3]


def test_standardize_fields_leaves_the_item_before_as_it_is() -> None:
    context = context_of()
    item = experiences_of(5, [3, 4])
    (standardised,) = StandardizeFields(context, fields=["rewards", "action_dist_inputs"])([item])
    columns = standardised.rollout.blocks[ID].columns
    for name in ("rewards", "action_dist_inputs"):
        np.testing.assert_allclose(columns[name].mean(0), 0, atol=1e-6)
        np.testing.assert_allclose(columns[name].std(0), 1, rtol=1e-5)
        assert columns[name].dtype == np.float32
    assert item.rollout.blocks[ID].columns["rewards"].tolist() == [5, 6, 7, 8, 9, 10, 11]
    equal = replace(item.rollout.blocks[ID], columns={"rewards": np.full(7, 3.0, np.float32)})
    (standardised,) = StandardizeFields(context)([Experiences(Rollout({ID: equal}, 7))])
    assert standardised.rollout.blocks[ID].columns["rewards"].tolist() == [0] * 7


@pytest.mark.parametrize("name", ["reward", "obs", "actions"])
def test_standardize_fields_of_another_kind(name: str) -> None:
    operator = StandardizeFields(context_of(), fields=[name])
    with pytest.raises(
        RunFailure, match=f"{name}: it is not a float column of the steps[\\s\\S]*expected +rewards, action_dist_inputs"
    ):
        list(operator([experiences_of(0, [3])]))


# -- training ------------------------------------------------------------------------------------------------------

UNCHECKED = "learners.check_on_policy_outputs=false"


def _trained(*operators: type[Operator]) -> tuple[np.ndarray[Any, Any], list[TrainResult], PlanContext]:
    """The parameters after two items, the results, and the context."""
    config = config_of(UNCHECKED)
    context = context_of(config, learners_of(config), Sent())
    flow: Any = iter([experiences_of(0, [5, 3]), experiences_of(8, [4])])
    for operator in operators:
        flow = operator(context)(flow)
    results = list(flow)
    return context.learners.get_weights()[ID], results, context


def test_gradients_computed_and_applied_are_one_step_of_training() -> None:
    expected, by_training, context = _trained(TrainOneStep)
    weights, by_gradients, other = _trained(ComputeGradients, ApplyGradients)
    np.testing.assert_allclose(weights, expected, rtol=1e-6)  # an update shuffles its rows, a gradient does not
    assert [result.num_env_steps_trained for result in by_gradients] == [8, 4]
    for one, two in zip(by_training, by_gradients, strict=True):
        (metrics,), (others,) = one.updates, two.updates
        for name in ("total_loss", "entropy"):
            assert others[ID][name] == pytest.approx(metrics[ID][name])
    for name in ("num_env_steps_trained_lifetime",):
        assert getattr(context.metrics, name) == getattr(other.metrics, name) == 12
    assert sent_of(context) == sent_of(other) == [None, None], "all runners get the weights of each update"


def test_computing_gradients_changes_nothing() -> None:
    weights, items, context = _trained(ComputeGradients)
    np.testing.assert_array_equal(weights, learners_of(config_of(UNCHECKED)).get_weights()[ID])
    assert sent_of(context) == []
    assert [item.gradients.modules[ID].num_rows for item in items] == [8, 4]  # type: ignore[attr-defined]


def _gradient(value: float, num_rows: int, runner: int) -> Gradients:
    one = ModuleGradient(np.full(3, value, np.float32), {"loss": value}, {}, num_rows)
    return Gradients(GroupGradients({ID: one}), num_rows, (Origin(runner, 1, num_rows),))


def test_an_earlier_state_drops_what_was_collected_since() -> None:
    context = context_of()
    concat, average = ConcatBatches(context, min_env_steps=10), AverageGradients(context, num_gradients=3)
    for node in (concat([experiences_of(0, [4])]), average([_gradient(1.0, 2, 0)])):
        plan = Plan(node, context)
        before = plan.get_state()
        assert list(plan) == []
        plan.set_state(before)
        assert plan.get_state() == before


@pytest.mark.parametrize(("asked", "expected"), [({"num_gradients": 3}, [20 / 7]), ({}, [2.5, 5.0])])
def test_gradients_are_averaged_by_their_rows(asked: dict[str, int], expected: list[float]) -> None:
    context = context_of(env_runners=Sent())  # of two runners
    items = [_gradient(1.0, 2, 0), _gradient(3.0, 6, 1), _gradient(5.0, 2, 0), _gradient(5.0, 1, 1)]
    if asked:
        items = [_gradient(1.0, 2, 0), _gradient(3.0, 4, 1), _gradient(6.0, 1, 0), _gradient(5.0, 1, 1)]
    averages = list(AverageGradients(context, **asked)(items))
    assert [float(item.gradients.modules[ID].vector[0]) for item in averages] == pytest.approx(expected)
    assert [origin.runner for origin in averages[0].origins] == [0, 1, 0][: len(averages[0].origins)]
    assert averages[0].num_env_steps == sum(origin.num_env_steps for origin in averages[0].origins)


@pytest.mark.parametrize(("update_all", "expected"), [(True, [None]), (False, [{0, 1}])])
def test_weights_go_to_the_runners_of_the_gradient_once(update_all: bool, expected: list[Any]) -> None:
    config = config_of(UNCHECKED)
    context = context_of(config, learners_of(config), Sent())
    (item,) = ComputeGradients(context)([experiences_of(0, [4])])
    origins = (Origin(0, 1, 2), Origin(1, 1, 1), Origin(0, 1, 1))
    list(ApplyGradients(context, update_all=update_all)([replace(item, origins=origins)]))
    assert sent_of(context) == expected


class _ModuleWithTarget:
    def target_networks(self) -> list[str]:
        return ["one"]


class _Targets:
    modules: ClassVar[dict[str, Any]] = dict.fromkeys((ID, "left", "right"), _ModuleWithTarget())

    def __init__(self) -> None:
        self.taus: list[float] = []

    def update_targets(self, tau: float) -> None:
        self.taus.append(tau)


@pytest.mark.parametrize(
    ("by", "every", "expected"),
    [
        ("updates", 1, [1, 2, 3, 4]),
        ("updates", 4, [2, 4]),
        ("env_steps", 25, [3]),
        ("env_steps", 10, [1, 2, 3, 4]),
        ("trained_steps", 21, [3]),
    ],
)
def test_targets_follow_by_what_is_counted(by: str, every: int, expected: list[int]) -> None:
    """Four results of two updates each, 10 env steps and 7 trained steps apart."""
    targets = _Targets()
    context = context_of(learners=targets)
    given_on = []

    def results() -> Iterator[TrainResult]:
        for _ in range(4):
            context.metrics.num_env_steps_sampled_lifetime += 10
            context.metrics.num_env_steps_trained_lifetime += 7
            yield TrainResult([{}, {}], 7)

    for number, _ in enumerate(UpdateTargetNetwork(context, by=by, every=every, tau=0.5)(results()), start=1):
        given_on += [number] * (len(targets.taus) - len(given_on))
    assert given_on == expected
    assert set(targets.taus) == {0.5}


# -- several plans ---------------------------------------------------------------------------------------------------


def _numbers(flow: Node, num: int) -> list[int]:
    return [item.num_env_steps_trained for item in islice(flow, num)]


def _tens(context: PlanContext, start: int) -> Node:
    return node_of(context, (TrainResult([], number) for number in count(start)))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 100, 1, 101, 2, 102]),
        ({"round_robin_weights": [2, 1]}, [0, 1, 100, 2, 3, 101]),
        ({"round_robin_weights": [1, 3], "output_indexes": [0]}, [0, 1, 2, 3, 4, 5]),
        ({"output_indexes": [1]}, [100, 101, 102, 103, 104, 105]),
        ({"mode": "async"}, [0, 100, 1, 101, 2, 102]),
    ],
)
def test_plans_in_turn(options: dict[str, Any], expected: list[int]) -> None:
    context = context_of()
    flow = Concurrently([_tens(context, 0), _tens(context, 100)], **options)
    assert _numbers(flow, 6) == expected


def test_as_many_as_are_ready() -> None:
    """'*' takes until a plan waits; a plan with a number holds its turn while it waits for runners."""
    context = context_of()
    ready = node_of(context, [*results_of(3), WAITING, *results_of(1, 3), WAITING, WAITING, *results_of(9, 4)])
    other = node_of(context, [*results_of(1, 100), WAITING, *results_of(9, 101)])
    got = raw(Concurrently([ready, other], round_robin_weights=["*", 1]), 8)
    assert [item if item is WAITING else item.num_env_steps_trained for item in got] == [
        *(0, 1, 2),
        100,
        3,
        WAITING,
        101,
        102,
    ]


def test_whichever_is_ready() -> None:
    context = context_of()
    slow = node_of(context, [WAITING, WAITING, *results_of(1), WAITING, WAITING, WAITING])
    fast = node_of(context, [*results_of(2, 100), WAITING, WAITING, WAITING])
    got = raw(Concurrently([slow, fast], mode="async"), 4)
    assert [item if item is WAITING else item.num_env_steps_trained for item in got] == [100, 101, 0, WAITING]


def test_a_plan_that_waits_for_runners_and_one_that_waits_for_a_queue_wait_for_runners() -> None:
    context = context_of()
    for mode in ("round_robin", "async"):
        flows = [node_of(context, [NotReady.FOR_QUEUE] * 9), node_of(context, [WAITING] * 9)]
        assert raw(Concurrently(flows, mode=mode), 2) == [WAITING, WAITING]


@pytest.mark.parametrize("indexes", [[], [2], [0, 7]])
def test_outputs_that_are_not_there(indexes: list[int]) -> None:
    context = context_of()
    flows = [node_of(context, results_of(1)) for _ in range(2)]
    with pytest.raises(ConfigError, match="output_indexes of Concurrently"):
        Concurrently(flows, output_indexes=indexes)


def test_a_queue_is_filled_up_to_its_capacity_and_emptied() -> None:
    context = context_of()
    source = Given(context, results_of(9))
    filled = Enqueue(context, queue="q", capacity=2)(source)
    emptied = Dequeue(context, queue="q")
    assert raw(emptied, 1) == [NotReady.FOR_QUEUE]
    assert _numbers(filled, 2) == [0, 1]
    assert raw(filled, 2) == [NotReady.FOR_QUEUE] * 2
    assert source.num_asked == 3, "the item that waits, and none after it"
    assert _numbers(emptied, 1) == [0]
    assert _numbers(filled, 1) == [2]
    assert _numbers(emptied, 2) == [1, 2]
    assert raw(emptied, 1) == [NotReady.FOR_QUEUE]


def test_plans_that_all_wait_for_a_queue_stand_still() -> None:
    context = context_of()
    filled = Enqueue(context, queue="q", capacity=1)(node_of(context, results_of(9)))
    assert next(filled)
    with pytest.raises(RunFailure, match="the plan is stuck"):
        next(filled)
    with pytest.raises(RunFailure, match="the plan is stuck"):
        next(Concurrently([Dequeue(context, queue="empty"), filled]))


@pytest.mark.parametrize("order", [[0, 1, 1, 0, 0, 1], [1, 0, 1, 0, 1, 0], [0, 1, 0, 1, 0, 1]])
def test_each_copy_has_all_items(order: list[int]) -> None:
    context = context_of()
    source = Given(context, [WAITING, *results_of(3)])
    copies = Duplicate(source, 2).copies
    assert source.num_asked == 0
    assert raw(copies[order[0]], 1) == [WAITING]
    got: list[list[int]] = [[], []]
    for index in order:
        got[index] += _numbers(copies[index], 1)
    assert got == [[0, 1, 2], [0, 1, 2]]
    assert source.num_asked == 4


def test_a_copy_that_is_ahead_waits_for_the_others() -> None:
    context = context_of()
    source = Given(context, results_of(3))
    ahead, behind = Duplicate(source, 2).copies
    assert _numbers(ahead, 1) == [0]
    assert raw(ahead, 2) == [NotReady.FOR_QUEUE, NotReady.FOR_QUEUE]
    assert source.num_asked == 1
    assert _numbers(behind, 1) == [0]
    assert _numbers(ahead, 1) == [1]


def test_copies_with_batches_of_other_sizes_keep_step() -> None:
    context = context_of()
    source = Given(context, [experiences_of(10 * number, [10]) for number in range(8)])
    joined, single = Duplicate(source, 2).copies
    flow = Concurrently([joined.for_each(ConcatBatches(context, min_env_steps=40)), single])
    given = [item.num_env_steps for item in islice(flow, 10)]
    assert sorted(given) == [10] * 8 + [40] * 2
    assert given.index(40) <= 4  # after four or five single ones


# -- what operators do in common -------------------------------------------------------------------------------------


OPTIONS: dict[type[Operator], dict[str, Any]] = {SelectExperiences: {"modules": [ID]}}


@pytest.mark.parametrize(
    "operator_class",
    [
        *(ConcatBatches, CompleteEpisodes, SelectExperiences, StandardizeFields, TrainOneStep, ComputeGradients),
        *(AverageGradients, ApplyGradients, UpdateTargetNetwork, Enqueue, DebugPrint, StandardMetricsReporting),
    ],
)
def test_waiting_passes_and_nothing_runs_before_it_is_asked_for(operator_class: type[Operator]) -> None:
    context = context_of(learners=_Targets())
    source = Given(context, [WAITING, NotReady.FOR_QUEUE])
    flow = operator_class(context, **OPTIONS.get(operator_class, {}))(source)
    assert source.num_asked == 0
    assert raw(flow, 2) == [WAITING, NotReady.FOR_QUEUE]


def test_functions_in_the_place_of_operators() -> None:
    context = context_of()
    flow = node_of(context, [WAITING, *results_of(2)]).for_each(lambda item: item.num_env_steps_trained)
    assert raw(flow, 3) == [WAITING, 0, 1]
    flow = node_of(context, [WAITING, *results_of(2)]).combine(lambda item: [item.num_env_steps_trained] * 2)
    assert raw(flow, 5) == [WAITING, 0, 0, 1, 1]


def test_debug_print_says_what_it_saw(capsys: pytest.CaptureFixture[str]) -> None:
    items = [experiences_of(0, [2, 3]), _gradient(1.0, 2, 0), *results_of(1, 7)]
    assert list(DebugPrint(context_of())(items)) == items
    assert capsys.readouterr().out.splitlines() == [
        "I saw Experiences of 5 env steps: default_policy 5 rows in 2 chunks",
        "I saw Gradients of 2 env steps",
        "I saw TrainResult of 0 updates on 7 env steps",
    ]


@pytest.mark.parametrize(("least", "num_items"), [(0, 1), (25, 3), (None, 4)])
def test_an_iteration_ends_after_so_many_env_steps(least: int | None, num_items: int) -> None:
    config = config_of("algorithm.min_sample_timesteps_per_iteration=40")
    context = context_of(config)

    def results() -> Iterator[TrainResult]:
        for _ in range(9):
            item = TrainResult([], 0, num_env_steps_read=10)
            context.metrics.count(item)
            yield item

    source = Given(context, results())
    options = {} if least is None else {"min_env_steps": least}
    assert next(StandardMetricsReporting(context, **options)(source)) == IterationEnd()
    assert source.num_asked == num_items
    assert context.metrics.num_env_steps_sampled == 10 * num_items


def test_an_iteration_does_not_end_in_the_middle_of_a_pass() -> None:
    context = context_of(config_of("algorithm.min_sample_timesteps_per_iteration=0"))
    source = Given(context, [TrainResult([], 0, ends_iteration=False), TrainResult([], 0)])
    assert next(StandardMetricsReporting(context)(source)) == IterationEnd()
    assert source.num_asked == 2


def test_options_are_checked_in_python_too() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown key ConcatBatches.min_env_step\b[\s\S]*did you mean +min_env_steps"
    ):
        ConcatBatches(context_of(), min_env_step=3)
    with pytest.raises(ConfigError, match=r"UpdateTargetNetwork.tau"):
        UpdateTargetNetwork(context_of(), tau=2.0)
