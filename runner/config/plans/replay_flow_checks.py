"""Checks of the operators that come after replay in a plan."""

from __future__ import annotations

from collections.abc import Iterator

from runner.config.errors import Problem
from runner.config.operators import (
    ApplyGradientsConfig,
    CompleteEpisodesConfig,
    MixInReplayConfig,
    OperatorConfig,
    ReplayConfig,
    TrainOneStepConfig,
    UpdatePrioritiesConfig,
)
from runner.config.plans.steps import Plan, PlanStep, Where


def find_flow_problems(plan: Plan, where: Where) -> Iterator[Problem]:
    """Yield operators that can do nothing for the items that come to them in a plan or one of its branches."""
    for index, step in enumerate(plan):
        before = plan[:index]
        if isinstance(step.config, UpdatePrioritiesConfig):
            yield from _find_lost_rows(step, before, where)
            yield from _find_other_buffer(step, before, where)
        if isinstance(step.config, CompleteEpisodesConfig) and _last(before, ReplayConfig, MixInReplayConfig):
            what = f"{step.key}: replayed steps are of many episodes, and none of them is ever complete"
            yield Problem(what, where(step.key), "Replay -> CompleteEpisodes", "CompleteEpisodes before the buffer")
        for branch in step.plans:
            yield from find_flow_problems(branch, where)


def _find_lost_rows(step: PlanStep, before: Plan, where: Where) -> Iterator[Problem]:
    trained = _last(before, TrainOneStepConfig, ApplyGradientsConfig)
    if trained is not None and isinstance(trained.config, ApplyGradientsConfig):
        what = f"{step.key}: gradients do not say which rows they were computed on, so that no priority can be set"
        yield Problem(what, where(step.key), "ApplyGradients -> UpdatePriorities", "TrainOneStep -> UpdatePriorities")


def _find_other_buffer(step: PlanStep, before: Plan, where: Where) -> Iterator[Problem]:
    replayed = [one.config.buffer for one in before if isinstance(one.config, (ReplayConfig, MixInReplayConfig))]
    updated = getattr(step.config, "buffer", None)
    if replayed and updated not in replayed:
        what = f"{step.key}: no row that comes to it was replayed from this buffer"
        yield Problem(what, where(step.key), f"buffer {updated}", f"buffer: {' or '.join(dict.fromkeys(replayed))}")


def _last(before: Plan, *kinds: type[OperatorConfig]) -> PlanStep | None:
    """Return the last of some steps that is of one of these kinds."""
    return next((step for step in reversed(before) if isinstance(step.config, kinds)), None)
