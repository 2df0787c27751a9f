"""Checks of `learners.prefetch`: runs in which no train batch can be made while learners update."""

from __future__ import annotations

from collections.abc import Iterator

from runner.config.composed import Composed
from runner.config.errors import Problem
from runner.config.module_ids import DEFAULT_MODULE_ID, declared_module_ids, trained_modules
from runner.config.operators import (
    ASYNC,
    ApplyGradientsConfig,
    ComputeGradientsConfig,
    ParallelRolloutsConfig,
    TrainOneStepConfig,
)
from runner.config.plans import learns_from_replay_only, read_plan, steps_of
from runner.config.schemas import ExperimentConfig

_KEY = "learners.prefetch"
_CHANGE_LEARNERS = (ApplyGradientsConfig, ComputeGradientsConfig, TrainOneStepConfig)


def find_prefetch_problems(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Yield why the learners of this run cannot be sent a train batch while they update."""
    if config.learners.prefetch:
        for what, allowed in _misfits(config):
            yield Problem(f"{_KEY}: {what}", composed.where(_KEY), "true", f"false, or {allowed}")


def _misfits(config: ExperimentConfig) -> Iterator[tuple[str, str]]:
    """Yield what stands against it, and what is allowed beside false."""
    plan = read_plan(config.algorithm.plan)
    steps = list(steps_of(plan))
    if not any(isinstance(step.config, ParallelRolloutsConfig) and step.config.mode == ASYNC for step in steps):
        what = "train batches are made while learners update, and the plan has no ParallelRollouts with mode async"
        yield what, "an algorithm with such a plan: impala, appo"
        return
    if config.learners.num_learners == 0:
        what = "the learner is in the driver, which makes no train batch while it updates"
        yield what, "learners.num_learners=1 or more"
    module_ids = declared_module_ids(config) or [DEFAULT_MODULE_ID]
    if all(learns_from_replay_only(plan, module_id) for module_id in trained_modules(config, module_ids)):
        yield "the learner learns from replayed samples alone, whose priorities an update changes", "impala or appo"
    change_learners = [step for step in steps if isinstance(step.config, _CHANGE_LEARNERS)]
    if len(change_learners) > 1:
        named = ", ".join(f"{step.name} ({step.key})" for step in change_learners)
        yield f"an update would be in the way of another one, of {named}", "a plan with one TrainOneStep"
