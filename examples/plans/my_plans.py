"""Custom plans and an operator outside the repository. `runner` finds them by their dotted paths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from runner.plans import (
    ApplyGradients,
    AsyncGradients,
    ConcatBatches,
    Concurrently,
    Experiences,
    Operator,
    ParallelRollouts,
    PlanContext,
    Replay,
    StandardMetricsReporting,
    StoreToReplayBuffer,
    TrainOneStep,
)
from runner.streams import random_stream


def a2c(context: PlanContext) -> Iterator[Any]:
    """Sample, join and train: the plan of A2C and PPO."""
    rollouts = ParallelRollouts(context, mode="bulk_sync")
    train_op = rollouts.combine(ConcatBatches(context)).for_each(TrainOneStep(context))
    return StandardMetricsReporting(context)(train_op)


def a3c(context: PlanContext) -> Iterator[Any]:
    """Apply each gradient as soon as its env runner has computed it."""
    grads = AsyncGradients(context)
    train_op = grads.for_each(ApplyGradients(context, update_all=False))
    return StandardMetricsReporting(context)(train_op)


def debug_print(item: Any) -> Any:
    """Print the type of an item and pass it through; functions can be used as operators."""
    print("I saw", type(item))
    return item


def a2c_with_prints(context: PlanContext) -> Iterator[Any]:
    """Print the items before the update."""
    rollouts = ParallelRollouts(context, mode="bulk_sync")
    batches = rollouts.combine(ConcatBatches(context)).for_each(debug_print)
    return StandardMetricsReporting(context)(batches.for_each(TrainOneStep(context)))


def a2c_with_replay(context: PlanContext) -> Iterator[Any]:
    """Store sampled steps, and train on replayed ones; `algorithm=a2c_replay` provides the buffer."""
    store_op = ParallelRollouts(context, mode="bulk_sync").for_each(StoreToReplayBuffer(context))
    replay_op = Replay(context).for_each(TrainOneStep(context))
    train_op = Concurrently([store_op, replay_op], mode="round_robin", output_indexes=[1])
    return StandardMetricsReporting(context)(train_op)


class RandomShare(Operator):
    """Pass a random fraction of the items through, and drop the others.

    Args:
        context: context of the plan.
        share: fraction of the items, in (0, 1].
    """

    takes = ("Experiences",)
    gives = ("Experiences",)
    reports: ClassVar = {"given_share": ("mean", "fraction of the items that are passed through")}
    state = ("_stream",)

    def __init__(self, context: PlanContext, share: float = 0.5) -> None:
        super().__init__(context)
        self._share = share
        self._stream = random_stream(context.config.seed, "random_share")

    def transform(self, item: Experiences) -> list[Experiences]:
        """Return the item, or nothing."""
        is_given = self._stream.random() < self._share
        self.metrics.report("given_share", is_given)
        return [item] if is_given else []


class MirroredSteps(Operator):
    """Pass each item of CartPole's steps through, followed by an item of their mirror images."""

    takes = ("Experiences",)
    gives = ("Experiences",)

    def transform(self, item: Experiences) -> list[Experiences]:
        """Return the replayed steps and their mirror images."""
        [steps] = item.rollout.blocks.values()
        columns = dict(steps.columns)
        pairs = columns["obs"].reshape(-1, 2, 4)  # the observations before and after each step
        columns |= {"obs": -pairs[:, 0], "new_obs": -pairs[:, 1], "actions": 1 - columns["actions"]}
        return [item, Experiences.from_columns(columns, steps.is_terminated)]
