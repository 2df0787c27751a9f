"""`check_operator`: our operators keep the contract, and each rule names the operator that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runner import Trainer
from runner.config.errors import ConfigError
from runner.plans import (
    ApplyGradients,
    ComputeGradients,
    ConcatBatches,
    DebugPrint,
    Experiences,
    Operator,
    PlanContext,
    SelectExperiences,
    StandardizeFields,
    TrainOneStep,
)
from runner.testing import BrokenContract, check_operator
from tests.support.own_plans import EverySecond, OddSteps, ThreeResults, Unknown
from tests.testing.changed_classes import changed

OURS: dict[str, Callable[[PlanContext], Operator]] = {
    "ConcatBatches": lambda context: ConcatBatches(context, min_env_steps=10),
    "SelectExperiences": lambda context: SelectExperiences(context, modules=["default_policy"]),
    "StandardizeFields": lambda context: StandardizeFields(context, fields=["rewards"]),
    "ComputeGradients": ComputeGradients,
    "TrainOneStep": TrainOneStep,
    "DebugPrint": DebugPrint,
    "EverySecond": EverySecond,
    "Unknown": Unknown,
    "ThreeResults": ThreeResults,
}


@pytest.mark.parametrize("name", OURS)
def test_our_operators(name: str) -> None:
    check_operator(OURS[name])


def test_items_that_are_not_made_have_to_be_given() -> None:
    with pytest.raises(ConfigError, match="ApplyGradients takes items that check_operator cannot make"):
        check_operator(ApplyGradients)


class Own(Operator):
    """Gives items on; nothing is wrong with it."""

    takes = ("Experiences",)
    gives = ("Experiences",)

    def __init__(self, context: PlanContext) -> None:
        super().__init__(context)
        self.num_seen = 0

    def transform(self, item: Any) -> Iterable[Any]:
        self.num_seen += 1
        return [item]


class ReportsNothing(Own):
    reports = {"num_items": ("sum", "items that were given")}  # noqa: RUF012


class ReportsInfinity(ReportsNothing):
    def transform(self, item: Any) -> Iterable[Any]:
        self.metrics.report("num_items", float("inf"))
        return super().transform(item)


class ReportsWhatItForgets(ReportsNothing):
    def transform(self, item: Any) -> Iterable[Any]:
        self.metrics.report("num_items", self.num_seen)
        return super().transform(item)


NamesNoTuple = changed(Own, takes=["Experiences"])
NamesNoItem = changed(Own, gives=("Experience",))
TakesNothing = changed(Own, takes=())
ForgetsItsState = changed(Own, get_state=lambda self: {"seen": np.random.default_rng().random()})
GivesNumbers = changed(Own, transform=lambda self, item: [item.num_env_steps])


class HasAStateOfObjects(Own):
    def get_state(self) -> dict[str, Any]:
        return {"seen": self}


class WritesIntoItems(Own):
    def transform(self, item: Experiences) -> Iterable[Any]:
        for block in item.rollout.blocks.values():
            block.columns["rewards"][:] = 0.0  # type: ignore[index]
        return [item]


class DrawsFromElsewhere(Own):
    def transform(self, item: Any) -> Iterable[Any]:
        return [replace(item, ends_iteration=True, origins=())] * np.random.default_rng().integers(1, 50)


class CountsInSecret(Own):
    def transform(self, item: Any) -> Iterable[Any]:
        self.num_seen += 1
        return [item] if self.num_seen % 2 else []


class Fails(Own):
    def transform(self, item: Any) -> Iterable[Any]:
        raise KeyError("goal")


@pytest.mark.parametrize(
    ("operator_class", "message"),
    [
        (NamesNoTuple, "takes is not a tuple of names"),
        (NamesNoItem, "gives names an unknown item"),
        (TakesNothing, "an operator that takes no items must be a Source"),
        (HasAStateOfObjects, "state/seen: HasAStateOfObjects cannot be part of a checkpoint"),
        (ForgetsItsState, "get_state after set_state returns a different state"),
        (GivesNumbers, "returned an item of a class that its `gives` does not name"),
        (WritesIntoItems, "the operator changes its input items: rollout of item 0 is different afterwards"),
        (DrawsFromElsewhere, "two new operators return different items for the same inputs"),
        (CountsInSecret, "an operator with the state after item 1 continues differently from the original"),
        (ReportsNothing, "plan/ReportsNothing/num_items is declared but not reported"),
        (ReportsInfinity, "plan/ReportsInfinity/num_items is not finite"),
        (ReportsWhatItForgets, "an operator with the state after item 1 reports different values than the original"),
        (Fails, "KeyError: 'goal'"),
        (OddSteps, "gives names an unknown item"),
    ],
)
def test_refuses(operator_class: type[Operator], message: str) -> None:
    with pytest.raises(BrokenContract, match=message) as caught:
        check_operator(operator_class)
    assert str(caught.value).startswith(f"{operator_class.__name__} breaks ")


def test_an_operator_of_users() -> None:
    check_operator(Own)


class Copies(Operator):
    """Passes each item through, followed by a copy of its single steps."""

    takes = ("Experiences",)
    reports = {"num_copies": ("sum", "copied steps")}  # noqa: RUF012

    def transform(self, item: Experiences) -> Iterable[Experiences]:
        [block] = item.rollout.blocks.values()
        columns = {name: block.columns[name] for name in ("actions", "rewards", "action_logp", "action_dist_inputs")}
        obs = {"obs": block.columns["obs"][block.obs_rows], "new_obs": block.columns["obs"][block.obs_rows + 1]}
        self.metrics.report("num_copies", block.num_rows)
        return [item, Experiences.from_columns(columns | obs, np.zeros(block.num_rows, np.bool_))]


def test_an_operator_that_makes_experiences() -> None:
    check_operator(Copies)


def test_the_context_of_a_trainer_whose_plan_contains_the_operator() -> None:
    def make_context() -> PlanContext:
        plan = f"algorithm.plan=[ParallelRollouts,ConcatBatches,{{_target_: {__name__}.Copies}},TrainOneStep]"
        return Trainer.from_experiment("a2c_cartpole", ["tracking=none", plan]).context

    check_operator(Copies, context=make_context)
