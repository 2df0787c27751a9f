"""From `algorithm.plan` to operators: parts of one's own, what they do wrong, and plans that end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from runner import plans
from runner.config.errors import ConfigError, RunFailure
from runner.config.operators import OPERATORS
from runner.experiment.trainer import Trainer
from runner.interrupts import Interrupted, PartialIteration
from runner.plans import ConcatBatches, DebugPrint, IterationEnd, Operator, Plan, PlanContext, TrainOneStep, make_plan
from runner.plans.operator import IteratorSource
from runner.plans.operators.recorded import ReadRecorded
from tests.conftest import without_times
from tests.plans.hand_made import config_of, context_of, experiences_of, parts_of

OWN = "tests.support.own_plans"
SMALL = (
    "algorithm.train_batch_size_per_learner=40",
    "algorithm.minibatch_size=20",
    "env_runners.num_envs_per_env_runner=2",
    "module.fcnet_hiddens=[4]",
    "evaluation=none",
    "tracking=none",
)


def results_of(plan: str, num_iterations: int = 3, *overrides: str) -> list[dict[str, Any]]:
    arguments = [*SMALL, *overrides, f"algorithm.plan={plan}"]
    with Trainer.from_experiment("ppo_cartpole", arguments) as trainer:
        return [without_times(trainer.train()) for _ in range(num_iterations)]


def test_a_function_gives_the_numbers_of_the_same_operators() -> None:
    expected = results_of(
        f"[ParallelRollouts,{{_target_: {OWN}.EverySecond, first: 1}},{{ConcatBatches: "
        "{min_env_steps: 40}},TrainOneStep]"
    )
    assert results_of(f"[{{_target_: {OWN}.two_batches}}]") == expected


def test_a_plan_that_reports_by_itself() -> None:
    assert results_of(f"[{{_target_: {OWN}.reported}}]") == results_of("[ParallelRollouts,TrainOneStep]")


def test_an_operator_that_says_nothing_of_its_items() -> None:
    plain = results_of("[ParallelRollouts,TrainOneStep]")
    assert results_of(f"[ParallelRollouts,{{_target_: {OWN}.Unknown}},TrainOneStep]") == plain


def test_a_plan_that_ends() -> None:
    with Trainer.from_experiment("ppo_cartpole", [*SMALL, f"algorithm.plan=[{{_target_: {OWN}.ThreeResults}}]"]) as one:
        assert [one.train()["training_iteration"] for _ in range(3)] == [1, 2, 3]
        with pytest.raises(RunFailure, match="the plan has ended"):
            one.train()


def test_a_stop_that_ends_a_generator_is_no_place_to_continue_from() -> None:
    def wait() -> Iterator[Any]:
        raise PartialIteration
        yield

    with pytest.raises(Interrupted) as stop:
        IteratorSource(context_of(), wait()).step()
    assert not isinstance(stop.value, PartialIteration)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (f"[{{_target_: {OWN}.no_flow}}]", r"no_flow does not return an iterator of items[\s\S]*got +list"),
        (f"[{{_target_: {OWN}.Unknown}}]", r"Unknown takes items, but no operator comes before it"),
        (
            f"[{{_target_: {OWN}.EverySecond, first: 1}}]",
            r"EverySecond needs an operator before it that gives items",
        ),
    ],
)
def test_what_is_no_plan(plan: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        results_of(plan)


class Larger(ConcatBatches):
    """An operator of one's own, made from one of runner; has its options."""


class Mine:
    """Holds an operator that has the name of one of runner."""

    class TrainOneStep(Operator):
        """Has an argument that the other one does not have."""

        def __init__(self, context: PlanContext, factor: int) -> None:
            super().__init__(context)
            self.factor = factor


def test_operators_made_from_those_of_runner_and_named_like_them() -> None:
    context = context_of(config_of())
    larger = Larger(context, min_env_steps=5)
    assert [item.num_env_steps for item in larger([experiences_of(0, [3]), experiences_of(3, [3])])] == [6]
    assert Mine.TrainOneStep(context, factor=3).options is None
    assert list(context.operators) == ["Larger", "TrainOneStep"]
    TrainOneStep(context)
    assert list(context.operators) == ["Larger", "TrainOneStep", "TrainOneStep#2"]


def test_nothing_runs_before_it_is_asked_for() -> None:
    config = config_of("algorithm.plan=[ParallelRollouts,TrainOneStep]")
    with Trainer(config) as trainer:
        context = PlanContext(config, trainer.parts)
        plan = make_plan(context)
        assert context.metrics.num_env_steps_sampled_lifetime == 0
        assert next(plan) == IterationEnd()
        assert context.metrics.num_env_steps_sampled_lifetime > 0


class _Data:
    num_batches = 0

    def readers(self, num: int) -> list[Any]:
        return []


class _Learners:
    num_learners = 1

    def __init__(self) -> None:
        self.num_reads = 0

    def read_from(self, make_readers: Any) -> None:
        self.num_reads += 1


def _read_recorded() -> ReadRecorded:
    config = config_of("offline.dataset_num_iters_per_learner=5")
    return ReadRecorded(PlanContext(config, replace(parts_of(_Learners()), recorded_data=_Data())))  # type: ignore[arg-type]


def test_updates_that_an_iteration_has_left_are_kept() -> None:
    """Also where another plan ends the iteration in the middle of them."""
    read = _read_recorded()
    data: Any = read.context.recorded_data
    lefts = []
    for num_done in (2, 2, 1, 3):
        lefts.append(next(read).left)
        data.num_batches += num_done
    assert lefts == [5, 3, 1, 5]
    assert read.get_state() == {"left": 5, "num_before": 5}
    other = _read_recorded()
    other.set_state(read.get_state())
    other.context.recorded_data.num_batches = data.num_batches
    assert next(other).left == next(read).left == 2


def test_every_operator_of_a_plan_is_found_in_runner_plans() -> None:
    assert set(OPERATORS) <= set(plans.__all__)
    assert all(hasattr(plans, name) for name in OPERATORS)


def test_a_run_does_not_stop_while_recorded_batches_wait_and_a_restored_one_reads_first() -> None:
    read = _read_recorded()
    plan = Plan(DebugPrint(read.context)(read), read.context)
    plan.root.step()
    assert not plan.can_be_saved, "the batches wait for DebugPrint"
    state = plan.get_state()  # of an iteration that another branch ended
    other = _read_recorded()
    resumed = Plan(DebugPrint(other.context)(other), other.context)
    resumed.set_state(state)
    learners: Any = other.context.learners
    assert learners.num_reads == 1, "before the waiting batches are trained on"
    assert next(resumed).left == 5
    assert learners.num_reads == 1
