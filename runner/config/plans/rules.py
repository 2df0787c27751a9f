"""Checks of whole plans: items, queues, the recorded data, and whether an iteration ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from runner.config.errors import Problem, Where
from runner.config.operators import (
    ApplyGradientsConfig,
    AsyncRequestsConfig,
    CompleteEpisodesConfig,
    ReadRecordedConfig,
    StandardMetricsReportingConfig,
    TrainOneStepConfig,
)
from runner.config.plans.flow import ItemCheck, find_queue_problems
from runner.config.plans.needs import is_asynchronous
from runner.config.plans.steps import KEY, Plan, PlanReader, PlanStep, read_plan, steps_of
from runner.config.schemas import ExperimentConfig

_UPDATES = (ApplyGradientsConfig, TrainOneStepConfig)


def find_plan_problems(values: Sequence[Any], where: Where) -> list[Problem]:
    """Find what is wrong in a plan, and with how its operators fit together."""
    reader = PlanReader(where)
    plan = reader.read(values, KEY)
    if reader.problems:
        return reader.problems
    of_items = ItemCheck(where).problems_of(plan)
    others = (*find_queue_problems(plan, where), *_find_early_ends(plan, where), *_find_shared_reading(plan, where))
    return list(dict.fromkeys((*of_items, *others)))


def find_asynchrony_problems(config: ExperimentConfig, where: Where) -> Iterator[Problem]:
    """Yield options of asynchrony that would do nothing, and requests to simulators.

    Requests would be in flight to them, for which a checkpoint would have to wait.
    """
    for step in steps_of(read_plan(config.algorithm.plan)):
        yield from _find_useless_options(step, where)
        if config.env.is_external and is_asynchronous(step):
            what = f"{step.key}: simulators that connect (env.port) sample in rounds"
            expected = "ParallelRollouts with mode bulk_sync or raw; simulators go on while the learner updates"
            yield Problem(what, where(step.key), step.name, expected)


def _find_useless_options(step: PlanStep, where: Where) -> Iterator[Problem]:
    if not isinstance(step.config, AsyncRequestsConfig):
        return
    has_bound, is_deterministic = step.config.max_weights_lag is not None, step.config.deterministic
    if not is_asynchronous(step) and (has_bound or is_deterministic):
        name = "max_weights_lag" if has_bound else "deterministic"
        what = f"{step.key}: {name} is for samples that are asked for while the plan goes on"
        yield Problem(what, where(step.key), name, "mode: async")
    elif has_bound and is_deterministic:
        what = f"{step.key}: with deterministic the order of samples bounds their lag, max_weights_lag does nothing"
        expected = "one of the two; num_async says how far samples may lag behind"
        yield Problem(what, where(step.key), "deterministic: true, max_weights_lag", expected)


def find_untrained_plan(config: ExperimentConfig, where: Where) -> Iterator[Problem]:
    """Yield that a plan learns nothing; one that records what it samples, or has unknown steps, may."""
    steps = list(steps_of(read_plan(config.algorithm.plan)))
    kinds = [step.base or type(step.config) for step in steps]
    is_known = all(step.config is not None or step.base is not None for step in steps)
    if is_known and config.offline.output is None and not any(issubclass(kind, _UPDATES) for kind in kinds):
        names = " -> ".join(step.name for step in steps)
        expected = (
            "a plan with TrainOneStep or ApplyGradients; without one where offline.output records what is sampled"
        )
        yield Problem(f"{KEY} trains nothing: it updates no module", where(KEY), names, expected)


def find_compile_problems(config: ExperimentConfig, where: Where) -> Iterator[Problem]:
    """Yield what makes `learners.compile` useless or impossible."""
    if not config.learners.compile:
        return
    steps = list(steps_of(read_plan(config.algorithm.plan)))
    kinds = [step.base or type(step.config) for step in steps]
    knows_all = all(step.config or step.base for step in steps)
    trains = any(issubclass(kind, TrainOneStepConfig) for kind in kinds)
    completes = any(issubclass(kind, CompleteEpisodesConfig) for kind in kinds)
    module, has_microbatches = config.module, any(one.microbatch_size for one in config.algorithms.values())
    reasons = {
        "what is compiled is TrainOneStep, and the plan has none": knows_all and not trains,
        "train batches of whole episodes (CompleteEpisodes) have many sizes": completes,
        "microbatches (algorithm.microbatch_size) are not compiled": has_microbatches,
        "sequences of a module with memory (module.use_lstm) have many lengths": module.use_lstm or module.use_gru,
        "modules that share parameters are stepped together": config.multi_agent.multi_rl_module is not None,
    }
    for what, is_so in reasons.items():
        if is_so:
            yield Problem(f"learners.compile: {what}", where("learners.compile"), "true", "false")


def _find_early_ends(plan: Plan, where: Where) -> Iterator[Problem]:
    for step in steps_of(plan):
        if isinstance(step.config, StandardMetricsReportingConfig) and step is not plan[-1]:
            what = f"{step.key}: StandardMetricsReporting ends an iteration of the whole plan"
            yield Problem(what, where(step.key), expected=f"the last operator of {KEY}, or left out")


def _find_shared_reading(plan: Plan, where: Where) -> Iterator[Problem]:
    """Find a second reader of the recorded data: their batches are where the learners are, and come once."""
    readers = [step for step in steps_of(plan) if isinstance(step.config, ReadRecordedConfig)]
    for step in readers[1:]:
        what = f"{step.key}: the recorded data are read by {readers[0].key} already"
        yield Problem(what, where(step.key), expected="one ReadRecorded in a plan")
