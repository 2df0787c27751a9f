"""Checks of operators that run several plans in turn: which plans' items are given on, and their shares."""

from __future__ import annotations

from collections.abc import Iterator

from runner.config.algorithms import AlgorithmConfig
from runner.config.errors import Problem, show_value
from runner.config.operators import (
    ASYNC,
    AUTO,
    ROUND_ROBIN,
    ApplyGradientsConfig,
    AsyncGradientsConfig,
    BranchesConfig,
    ConcurrentlyConfig,
    DuplicateConfig,
    EnqueueConfig,
    ParallelRolloutsConfig,
    ReadRecordedConfig,
    ReplayConfig,
    TrainOneStepConfig,
)
from runner.config.plans.reading import read_plan
from runner.config.plans.steps import PlanStep, Where, steps_of

_SAMPLES = (ParallelRolloutsConfig, AsyncGradientsConfig)
_TRAINS = (TrainOneStepConfig, ApplyGradientsConfig)


def find_branch_problems(step: PlanStep, config: BranchesConfig, where: Where) -> Iterator[Problem]:
    """Find outputs that no plan of an operator has, and shares that the plans cannot have."""
    num_plans, here = len(step.plans), where(step.key)
    indexes, weights = config.output_indexes, config.round_robin_weights
    if indexes is not None and not indexes:
        what = f"{step.key}: {step.name} gives no items on, so no iteration would ever end"
        yield Problem(what, here, "output_indexes: []", f"indexes from 0 to {num_plans - 1}, or null for all")
    outside = [index for index in indexes or () if index >= num_plans]
    if outside:
        what = f"{step.key}: output_indexes name plan {outside[0]}, and the last plan is {num_plans - 1}"
        yield Problem(what, here, str(indexes), f"indexes from 0 to {num_plans - 1}")
    if weights is None:
        return
    if isinstance(weights, str):
        yield from _find_no_shares(step, config, where)
        return
    if config.mode == ASYNC:
        what = f"{step.key}: round_robin_weights have no effect with mode async"
        yield Problem(what, here, show_value(weights), "mode: round_robin")
    if isinstance(config, DuplicateConfig) and "*" in weights:
        what = f"{step.key}: the weight '*' is for plans that wait for others, copies have their items at once"
        yield Problem(what, here, show_value(weights), "null, or numbers")
        return
    endless = [index for index, weight in enumerate(weights[:num_plans]) if weight == "*" and not _waits(step, index)]
    if endless:
        what = f"{step.key}: plan {endless[0]} never waits, so its turn with the weight '*' would never end"
        allowed = "a number; or a plan that begins with Dequeue or samples async"
        yield Problem(what, here, show_value(weights), allowed)
    wrong = [weight for weight in weights if weight != "*" and not (isinstance(weight, int) and weight >= 1)]
    if wrong or len(weights) != num_plans:
        what = f"{step.key}: round_robin_weights are not one weight for each of {num_plans} plans"
        yield Problem(what, here, show_value(weights), "integers of 1 or more, or '*'")


def _find_no_shares(step: PlanStep, config: BranchesConfig, where: Where) -> Iterator[Problem]:
    """Find why `round_robin_weights: auto` has no plan that samples and one that trains."""
    samples, trains = (
        [any(issubclass(inner.base or type(inner.config), kinds) for inner in steps_of(plan)) for plan in step.plans]
        for kinds in (_SAMPLES, _TRAINS)
    )
    if (samples, trains) == ([True, False], [False, True]) and config.mode == ROUND_ROBIN:
        return
    what = f"{step.key}: round_robin_weights: auto shares turns between a plan that samples and one that trains"
    allowed = "mode: round_robin, and two plans: the first one samples, the second one trains"
    yield Problem(what, where(step.key), f"mode: {config.mode}, {len(step.plans)} plans", allowed)


def find_useless_intensity(algorithm: AlgorithmConfig, where: Where) -> Iterator[Problem]:
    """Find a training intensity that no operator of the plan keeps to."""
    plan = read_plan(algorithm.plan)
    if algorithm.training_intensity is None or any(step.is_function for step in plan):
        return
    branching = [step.config for step in steps_of(plan) if isinstance(step.config, BranchesConfig)]
    if not any(config.round_robin_weights == AUTO for config in branching):
        what = "algorithm.training_intensity has no effect: the plan does not share turns by it"
        allowed = "null; or a plan with Concurrently and round_robin_weights: auto"
        yield Problem(what, where("algorithm.training_intensity"), str(algorithm.training_intensity), allowed)


def _waits(step: PlanStep, index: int) -> bool:
    """Whether a plan of an operator gives no item while it has none ready."""
    if not step.plans[index]:
        return True
    if any(isinstance(inner.config, EnqueueConfig) for inner in steps_of(step.plans[index])):
        return True  # while the queue is full
    begin = step.plans[index][0]
    if isinstance(begin.config, ParallelRolloutsConfig):
        return begin.config.mode == ASYNC
    if isinstance(begin.config, ConcurrentlyConfig):
        return all(_waits(begin, inner) for inner in range(len(begin.plans)))
    return not isinstance(begin.config, (ReadRecordedConfig, ReplayConfig))
