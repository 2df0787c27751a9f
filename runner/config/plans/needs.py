"""The parts of a run that a plan uses."""

from __future__ import annotations

from runner.config.operators import (
    ASYNC,
    ENV_RUNNERS,
    LEARNERS,
    RECORDED_DATA,
    AsyncGradientsConfig,
    AsyncRequestsConfig,
    ComputeGradientsConfig,
    MixInReplayConfig,
    ParallelRolloutsConfig,
    ReplayConfig,
    SelectExperiencesConfig,
    TrainOneStepConfig,
)
from runner.config.plans.steps import Plan, PlanStep, read_plan, steps_of
from runner.config.schemas import ExperimentConfig

_LEARN = (AsyncGradientsConfig, ComputeGradientsConfig, TrainOneStepConfig)


def needs_of(config: ExperimentConfig) -> frozenset[str]:
    """Return the parts that the plan of an experiment uses.

    A custom function may use env runners, learners and, if `offline.input_` is set, recorded data.
    """
    steps = list(steps_of(read_plan(config.algorithm.plan)))
    needs = {need for step in steps for need in step.needs}
    if any(step.config is None for step in steps):
        needs |= {ENV_RUNNERS, LEARNERS} if any(step.is_function for step in steps) else set()
        needs |= {RECORDED_DATA} if config.offline.names_data else set()
    return frozenset(needs)


def columns_added_by_plan(config: ExperimentConfig) -> tuple[str, ...]:
    """Return the columns that custom operators of the plan add to experiences."""
    return tuple(column for step in steps_of(read_plan(config.algorithm.plan)) for column in step.writes)


def samples_asynchronously(config: ExperimentConfig) -> bool:
    """Return whether the plan samples asynchronously, so that env runners act with older weights."""
    return any(is_asynchronous(step) for step in steps_of(read_plan(config.algorithm.plan)))


def is_deterministic(config: ExperimentConfig) -> bool:
    """Return whether a step takes answers in the order of its requests, which makes runs reproducible."""
    return any(_takes_in_order(step) for step in steps_of(read_plan(config.algorithm.plan)))


def _takes_in_order(step: PlanStep) -> bool:
    if isinstance(step.config, AsyncRequestsConfig):
        return step.config.deterministic
    return step.arguments.get("deterministic") is True  # a custom operator


def is_asynchronous(step: PlanStep) -> bool:
    """Return whether a step keeps requests to env runners in flight."""
    if isinstance(step.config, ParallelRolloutsConfig):
        return step.config.mode == ASYNC
    return isinstance(step.config, AsyncRequestsConfig)


def learns_from_replay_only(plan: Plan, module_id: str) -> bool:
    """Return whether a module learns from replayed experiences only; unknown operators may learn from any."""
    is_replayed = False
    for step in plan:
        if isinstance(step.config, SelectExperiencesConfig) and module_id not in step.config.modules:
            return True  # later steps train other modules
        if isinstance(step.config, TrainOneStepConfig) and module_id not in (step.config.modules or [module_id]):
            continue  # trains other modules
        if step.config is None or not all(learns_from_replay_only(branch, module_id) for branch in step.plans):
            return False
        if isinstance(step.config, ReplayConfig):
            is_replayed = True
        elif isinstance(step.config, _LEARN) and not is_replayed:
            return False
        elif isinstance(step.config, MixInReplayConfig):
            is_replayed &= not step.config.store
    return True
