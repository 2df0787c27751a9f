"""Operators and plans as a user writes them, for tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner.plans import (
    ApplyGradients,
    AsyncGradients,
    ConcatBatches,
    Experiences,
    Operator,
    ParallelRollouts,
    PlanContext,
    PlanEnded,
    Source,
    StandardMetricsReporting,
    TrainOneStep,
    TrainResult,
)


class EverySecond(Operator):
    """Drop every second item."""

    takes = ("Experiences",)
    gives = ("Experiences",)
    reports = {  # noqa: RUF012
        "num_items": ("sum", "items that have come"),
        "given_share": ("mean", "fraction of the items that are passed through"),
        "episodes_p90": ("p90", "90th percentile of the chunks of episodes in an item"),
    }

    def __init__(self, context: PlanContext, first: int = 0) -> None:
        super().__init__(context)
        self.num_seen = first

    def transform(self, item: Experiences) -> Iterator[Experiences]:
        """Give the item if its number is even."""
        self.num_seen += 1
        self.metrics.report("num_items", 1)
        self.metrics.report("given_share", self.num_seen % 2)
        self.metrics.report("episodes_p90", sum(len(block) for block in item.rollout.blocks.values()))
        if self.num_seen % 2:
            yield item

    def get_state(self) -> dict[str, Any]:
        """Return how many items were seen."""
        return {"num_seen": self.num_seen}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `get_state`."""
        self.num_seen = int(state["num_seen"])


class ThreeResults(Source):
    """Give three results of nothing, and end."""

    gives = ("TrainResult",)
    needs = ("env_runners",)

    def __init__(self, context: PlanContext) -> None:
        super().__init__(context)
        self._num_left = 3

    def poll(self) -> TrainResult:
        """Return the next one."""
        if not self._num_left:
            raise PlanEnded
        self._num_left -= 1
        return TrainResult([], 0)


class OddSteps(Operator):
    """Give numbers, which no operator takes."""

    takes = ("Experiences",)
    gives = ("Numbers",)
    needs = ("env_runners",)


class Unknown(Operator):
    """Does not say what it takes and gives."""

    needs = ("env_runners",)

    def transform(self, item: Any) -> Iterator[Any]:
        """Give the item on."""
        yield item


class Computed(EverySecond):
    """Declares the same in a way that its source does not tell."""

    reports = dict(EverySecond.reports)  # noqa: RUF012


class Misspelt(Unknown):
    """Reports what it does not declare."""

    reports = {"num_items": ("sum", "items")}  # noqa: RUF012

    def transform(self, item: Any) -> Iterator[Any]:
        """Give the item on."""
        self.metrics.report("num_item", 1)
        yield item


class NoReduction(Unknown):
    """Declares a reduction that there is not."""

    reports = {"num_items": ("summ", "items")}  # noqa: RUF012


def two_batches(context: PlanContext, every: int = 1) -> Iterator[Any]:
    """The plan of PPO, on experiences of which one of two is dropped, in Python."""
    rollouts = ParallelRollouts(context).for_each(EverySecond(context, every))
    return rollouts.combine(ConcatBatches(context, min_env_steps=40)).for_each(TrainOneStep(context))


def gradients(context: PlanContext) -> Iterator[Any]:
    """The plan of A3C in Python."""
    return ApplyGradients(context, update_all=False)(AsyncGradients(context))


def reported(context: PlanContext) -> Iterator[Any]:
    """A plan that reports by itself."""
    return StandardMetricsReporting(context)(TrainOneStep(context)(ParallelRollouts(context)))


def made_late(context: PlanContext) -> Iterator[Any]:
    """A plan whose operators are made when its first result is asked for."""
    yield from TrainOneStep(context)(EverySecond(context)(ParallelRollouts(context)))


def no_flow(context: PlanContext) -> list[int]:
    """No plan."""
    return [1]
