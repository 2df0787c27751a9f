"""Checks of complete plans: items, queues, recorded data, and the end of iterations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from runner.config.errors import Problem
from runner.config.operators import (
    ApplyGradientsConfig,
    AsyncRequestsConfig,
    ComputeGradientsConfig,
    ReadRecordedConfig,
    StandardMetricsReportingConfig,
    TrainOneStepConfig,
)
from runner.config.plans.flow import check_items, find_queue_problems
from runner.config.plans.needs import is_asynchronous
from runner.config.plans.steps import KEY, Plan, PlanReader, PlanStep, read_plan, steps_of
from runner.config.schemas import ExperimentConfig

_UPDATES = (ApplyGradientsConfig, TrainOneStepConfig)


def find_plan_problems(values: Sequence[Any]) -> list[Problem]:
    """Find problems of individual steps, and of the items between them."""
    reader = PlanReader()
    plan = reader.read(values, KEY)
    if reader.problems:
        return reader.problems
    given, of_items = check_items(plan)
    of_queues = find_queue_problems(plan, given)
    others = (*_find_early_ends(plan), *_find_shared_reading(plan))
    return list(dict.fromkeys((*of_items, *of_queues, *others)))


def find_asynchrony_problems(config: ExperimentConfig) -> Iterator[Problem]:
    """Yield asynchronous options without effect, and asynchronous requests to external simulators.

    A checkpoint would have to wait for such requests.
    """
    for step in steps_of(read_plan(config.algorithm.plan)):
        yield from _find_useless_options(step)
        if config.env.is_external and is_asynchronous(step):
            what = f"{step.key}: external simulators (env.port) sample in rounds"
            expected = "ParallelRollouts with mode bulk_sync or raw"
            yield Problem(what, step.key, step.name, expected)


def _find_useless_options(step: PlanStep) -> Iterator[Problem]:
    if not isinstance(step.config, AsyncRequestsConfig):
        return
    has_bound, is_deterministic = step.config.max_weights_lag is not None, step.config.deterministic
    if not is_asynchronous(step) and (has_bound or is_deterministic):
        name = "max_weights_lag" if has_bound else "deterministic"
        what = f"{step.key}: {name} has no effect without mode: async"
        yield Problem(what, step.key, name, "mode: async")
    elif has_bound and is_deterministic:
        what = f"{step.key}: max_weights_lag has no effect with deterministic: true"
        fix = "remove one of them; num_async bounds the lag of deterministic samples"
        yield Problem(what, step.key, "deterministic: true, max_weights_lag", fix=fix)


def find_untrained_plan(config: ExperimentConfig) -> Iterator[Problem]:
    """Report a plan that trains nothing, unless it records its samples or has unknown steps."""
    steps = list(steps_of(read_plan(config.algorithm.plan)))
    is_untrained = all(step.is_understood and not step.is_a(*_UPDATES) for step in steps)
    if is_untrained and config.offline.output is None:
        names = " -> ".join(step.name for step in steps)
        expected = "a plan with TrainOneStep or ApplyGradients, or offline.output to record the samples"
        yield Problem(f"{KEY} does not update any module", KEY, names, expected)


def find_untrained_auxiliary_modules(config: ExperimentConfig) -> Iterator[Problem]:
    """Find auxiliary modules that the plan cannot train."""
    steps = list(steps_of(read_plan(config.algorithm.plan)))
    if any(step.config is None for step in steps):
        return  # a custom operator may train them
    trained = [step.config.modules for step in steps if isinstance(step.config, TrainOneStepConfig)]
    trained += [None for step in steps if isinstance(step.config, ComputeGradientsConfig)]
    reads = any(isinstance(step.config, ReadRecordedConfig) for step in steps)
    for module_id in config.multi_agent.trained_modules(list(config.multi_agent.auxiliary_modules)):
        key = f"multi_agent.modules.{module_id}"
        if reads:
            what = f"{key}: auxiliary modules learn from sampled or replayed experiences, but the plan reads batches"
            yield Problem(what, KEY, "ReadRecorded", "Replay from a buffer with recorded: true")
        elif not any(modules is None or module_id in modules for modules in trained):
            what = f"{key}: the plan does not train this module"
            expected = f"TrainOneStep, or {{TrainOneStep: {{modules: [{module_id}]}}}}"
            yield Problem(what, KEY, expected=expected)


def _find_early_ends(plan: Plan) -> Iterator[Problem]:
    for step in steps_of(plan):
        if isinstance(step.config, StandardMetricsReportingConfig) and step is not plan[-1]:
            what = f"{step.key}: StandardMetricsReporting ends an iteration of the complete plan"
            yield Problem(what, step.key, fix=f"make it the last operator of {KEY}, or remove it")


def _find_shared_reading(plan: Plan) -> Iterator[Problem]:
    """Find a second reader of the recorded data, which can be read only once."""
    readers = [step for step in steps_of(plan) if isinstance(step.config, ReadRecordedConfig)]
    for step in readers[1:]:
        what = f"{step.key}: {readers[0].key} already reads the recorded data"
        yield Problem(what, step.key, expected="one ReadRecorded per plan")
