"""Checks of `learners.prefetch`: runs in which no train batch can be made while learners update."""

from __future__ import annotations

from collections.abc import Iterator

from runner.config.composed import Composed
from runner.config.errors import Problem
from runner.config.module_ids import DEFAULT_MODULE_ID, declared_module_ids, trained_modules
from runner.config.operators import (
    ApplyGradientsConfig,
    ComputeGradientsConfig,
    TrainOneStepConfig,
    UpdatePrioritiesConfig,
    UpdateTargetNetworkConfig,
)
from runner.config.plans import Plan, PlanStep, learns_from_replay_only, read_plan, samples_asynchronously, steps_of
from runner.config.schemas import ExperimentConfig

_KEY = "learners.prefetch"
_CHANGE_LEARNERS = (ApplyGradientsConfig, ComputeGradientsConfig, TrainOneStepConfig, UpdateTargetNetworkConfig)


def find_prefetch_problems(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Yield why the learners of this run cannot be sent a train batch while they update."""
    if config.learners.prefetch:
        for what, allowed in _misfits(config):
            yield Problem(f"{_KEY}: {what}", composed.where(_KEY), "true", f"false, or {allowed}")


def _misfits(config: ExperimentConfig) -> Iterator[tuple[str, str]]:
    """Yield why `prefetch` cannot work, and what is allowed beside false."""
    if config.learners.num_learners == 0:
        what = "the learner is in the driver, which makes no train batch while it updates"
        yield what, "learners.num_learners=1 or more"
    plan = read_plan(config.algorithm.plan)
    steps = list(steps_of(plan))
    if any(step.is_function for step in steps):
        return  # nobody knows what it does; learners refuse what would be in the way of an update
    if not samples_asynchronously(config):
        what = "train batches are made while learners update, and nothing in the plan samples asynchronously"
        yield what, "an algorithm with such a plan: impala, appo"
        return
    trains = [step for step in steps if _is(step, TrainOneStepConfig)]
    if not trains:
        yield "what is prefetched is for TrainOneStep, and the plan has none", "algorithm=impala or appo"
        return
    module_ids = declared_module_ids(config) or [DEFAULT_MODULE_ID]
    if all(learns_from_replay_only(plan, module_id) for module_id in trained_modules(config, module_ids)):
        yield "the learner learns from replayed samples alone", "algorithm=impala or appo"
    elif any(_is(step, UpdatePrioritiesConfig) for step in steps):
        what = "rows would be drawn before UpdatePriorities has set the priorities that the last update gave"
        yield what, "a plan without UpdatePriorities"
    in_turn = [step for step in _in_line_with(plan, trains[0]) if _is(step, UpdateTargetNetworkConfig)]
    beside = [step for step in steps if _is(step, *_CHANGE_LEARNERS) and step not in (trains[0], *in_turn)]
    if beside:
        named = ", ".join(f"{step.name} ({step.key})" for step in beside)
        yield f"learners that update for {trains[0].key} cannot serve {named} meanwhile", "a plan without it"


def _is(step: PlanStep, *kinds: type) -> bool:
    return issubclass(step.base or type(step.config), kinds)


def _in_line_with(plan: Plan, train: PlanStep) -> Plan:
    """Return the steps of the plan that has the step: they wait for each other."""
    if train in plan:
        return plan
    return next((found for step in plan for branch in step.plans if (found := _in_line_with(branch, train))), ())
