"""Checks of aggregators: runs in which they have nothing to do, or would make other batches than the learner."""

from __future__ import annotations

from collections.abc import Iterator

from runner.config.composed import Composed
from runner.config.errors import Problem
from runner.config.module_ids import DEFAULT_MODULE_ID, declared_module_ids, trained_modules
from runner.config.operators import (
    ASYNC,
    CompleteEpisodesConfig,
    ParallelRolloutsConfig,
    SelectExperiencesConfig,
    StandardizeFieldsConfig,
)
from runner.config.plans import learns_from_replay_only, read_plan, steps_of
from runner.config.schemas import ExperimentConfig

_KEY = "learners.num_aggregator_actors"
_CHANGE_ROWS = (CompleteEpisodesConfig, SelectExperiencesConfig, StandardizeFieldsConfig)


def find_aggregator_problems(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Yield why samples of this run cannot be prepared by aggregators."""
    if config.learners.num_aggregator_actors:
        where, got = composed.where(_KEY), str(config.learners.num_aggregator_actors)
        for what, allowed in _misfits(config):
            yield Problem(f"{_KEY}: {what}", where, got, f"0, or {allowed}")


def _misfits(config: ExperimentConfig) -> Iterator[tuple[str, str]]:
    """Yield what aggregators lack, and what is allowed besides none of them."""
    plan = read_plan(config.algorithm.plan)
    steps = list(steps_of(plan))
    if not any(isinstance(step.config, ParallelRolloutsConfig) and step.config.mode == ASYNC for step in steps):
        what = "they prepare samples while the learner updates, and the plan has no ParallelRollouts with mode async"
        yield what, "an algorithm with such a plan: impala, appo"
        return
    if config.engine == "inline":
        yield "engine=inline is one process, and aggregators are Ray actors", "engine=ray"
    elif config.env_runners.min_env_runners == 0:
        what = (
            "env runners in this process sample when the learner asks, so that aggregators have nothing to do meanwhile"
        )
        yield what, "env_runners.num_env_runners=1 or more"
    if config.learners.num_learners > 1:
        number = f"learners.num_learners={config.learners.num_learners}"
        what = f"each of {number} learns from rows that may begin within a chunk"
        yield what, "learners.num_learners of 0 or 1"
    module_ids = declared_module_ids(config) or [DEFAULT_MODULE_ID]
    if all(learns_from_replay_only(plan, module_id) for module_id in trained_modules(config, module_ids)):
        yield "the learner learns from replayed samples alone, which it prepares itself", "algorithm=impala or appo"
    for step in steps:
        if step.config is None or isinstance(step.config, _CHANGE_ROWS):
            what = f"{step.name} ({step.key}) may change the samples after they have been prepared"
            yield what, "a plan without this operator"
