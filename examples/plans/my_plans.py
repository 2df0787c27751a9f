"""Plans and an operator outside the repository. `python -m runner` finds them by their dotted paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from runner.plans import (
    ApplyGradients,
    AsyncGradients,
    ConcatBatches,
    Concurrently,
    Experiences,
    Operator,
    ParallelRollouts,
    Replay,
    Resources,
    StandardMetricsReporting,
    StoreToReplayBuffer,
    TrainOneStep,
)
from runner.streams import random_stream, restore_stream, stream_state


def a2c(resources: Resources) -> Iterator[Any]:
    """Sample, join, train: the plan of A2C and PPO."""
    rollouts = ParallelRollouts(resources, mode="bulk_sync")
    train_op = rollouts.combine(ConcatBatches(resources)).for_each(TrainOneStep(resources))
    return StandardMetricsReporting(resources)(train_op)


def a3c(resources: Resources) -> Iterator[Any]:
    """Apply each gradient as soon as its env runner has computed it."""
    grads = AsyncGradients(resources)
    train_op = grads.for_each(ApplyGradients(resources, update_all=False))
    return StandardMetricsReporting(resources)(train_op)


def debug_print(item: Any) -> Any:
    """Print the type of an item, and give it on: a function is an operator, too."""
    print("I saw", type(item))
    return item


def a2c_with_prints(resources: Resources) -> Iterator[Any]:
    """Print what comes before the update."""
    rollouts = ParallelRollouts(resources, mode="bulk_sync")
    batches = rollouts.combine(ConcatBatches(resources)).for_each(debug_print)
    return StandardMetricsReporting(resources)(batches.for_each(TrainOneStep(resources)))


def a2c_with_replay(resources: Resources) -> Iterator[Any]:
    """Store what is sampled, and learn from what is replayed; `algorithm=a2c_replay` has the buffer."""
    store_op = ParallelRollouts(resources, mode="bulk_sync").for_each(StoreToReplayBuffer(resources))
    replay_op = Replay(resources).for_each(TrainOneStep(resources))
    train_op = Concurrently([store_op, replay_op], mode="round_robin", output_indexes=[1])
    return StandardMetricsReporting(resources)(train_op)


class RandomShare(Operator):
    """Give a random share of the items on, and drop the others.

    Args:
        resources: of the run.
        share: of the items, in (0, 1].
    """

    takes = ("Experiences",)
    gives = ("Experiences",)
    reports: ClassVar = {"given_share": ("mean", "share of the items that are given on")}

    def __init__(self, resources: Resources, share: float = 0.5) -> None:
        super().__init__(resources)
        self._share = share
        self._stream = random_stream(resources.config.seed, "random_share")

    def transform(self, item: Experiences) -> Iterator[Experiences]:
        """Give the item, or nothing."""
        is_given = self._stream.random() < self._share
        self.metrics.report("given_share", is_given)
        if is_given:
            yield item

    def get_state(self) -> dict[str, Any]:
        """Return the state of the random stream: a resumed run draws the same numbers."""
        return {"stream": stream_state(self._stream)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        restore_stream(self._stream, dict(state["stream"]))
