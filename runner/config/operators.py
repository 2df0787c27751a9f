"""Operators of execution plans: for each its options, the items that it takes and gives, and the parts it needs.

The operators themselves, in `runner/plans`, are made from these blocks. Nothing here imports torch or ray, so that a
plan is checked and drawn before they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from runner.config.fields import option

# Items that flow between operators; see `runner/plans/items.py`.
EXPERIENCES = "Experiences"
RECORDED_BATCHES = "RecordedBatches"
GRADIENTS = "Gradients"
TRAIN_RESULT = "TrainResult"
ITEMS = (EXPERIENCES, RECORDED_BATCHES, GRADIENTS, TRAIN_RESULT)

# Parts that operators work with.
ENV_RUNNERS = "env_runners"
RECORDED_DATA = "recorded_data"
LEARNERS = "learners"
REPLAY_BUFFERS = "replay_buffers"
QUEUES = "queues"

ROUND_ROBIN, ASYNC = "round_robin", "async"
AUTO = "auto"


@dataclass(frozen=True)
class OperatorConfig:
    """Base of the options of an operator of the package; the class without `Config` has the operator's name.

    Custom operators declare `takes`, `gives` and `needs` in their own class.

    Attributes:
        takes: items that it can take. Empty means that it is a source, which begins a plan.
        gives: items that it returns. None means the items that it takes.
        needs: parts of the run that it works with.
    """

    takes: ClassVar[tuple[str, ...]] = ()
    gives: ClassVar[tuple[str, ...] | None] = None
    needs: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class AsyncRequestsConfig(OperatorConfig):
    """Base of operators that ask env runners while the plan goes on."""

    num_async: int = option(1, "requests in flight for each env runner", minimum=1)
    max_weights_lag: int | None = option(
        None,
        "an answer is waited for before others are taken once so many updates were made since it was asked for; "
        "null: however many",
        unit="updates",
        minimum=0,
    )
    deterministic: bool = option(
        False,
        "take answers in the order in which they were asked for, so that a run gives the same numbers in one process "
        "and on Ray, and after a kill; a slow env runner is waited for",
    )

    needs: ClassVar[tuple[str, ...]] = (ENV_RUNNERS,)


@dataclass(frozen=True)
class ParallelRolloutsConfig(AsyncRequestsConfig):
    """Let all env runners sample; `num_async`, `max_weights_lag` and `deterministic` are for mode async."""

    mode: str = option(
        "bulk_sync",
        "bulk_sync: one item a round, joined when all runners have sampled; raw: the same unjoined, an item for each "
        "runner; async: each runner's samples as soon as they are ready",
        choices=("bulk_sync", "raw", "async"),
    )

    gives: ClassVar[tuple[str, ...] | None] = (EXPERIENCES,)


@dataclass(frozen=True)
class ReadRecordedConfig(OperatorConfig):
    """Read the recorded data of the `offline` block; each learner reads its batches in its own process."""

    gives: ClassVar[tuple[str, ...] | None] = (RECORDED_BATCHES,)
    needs: ClassVar[tuple[str, ...]] = (RECORDED_DATA, LEARNERS)


@dataclass(frozen=True)
class AsyncGradientsConfig(AsyncRequestsConfig):
    """Let env runners compute gradients on their own samples, and give each gradient as soon as it is ready."""

    gives: ClassVar[tuple[str, ...] | None] = (GRADIENTS,)


@dataclass(frozen=True)
class ConcatBatchesConfig(OperatorConfig):
    """Join experiences until they are a train batch."""

    min_env_steps: int | str = option(
        "auto",
        "env steps of a joined item at least; auto: of the train batch of all learners",
        minimum=1,
        choices=("auto",),
    )

    takes: ClassVar[tuple[str, ...]] = (EXPERIENCES,)


@dataclass(frozen=True)
class CompleteEpisodesConfig(OperatorConfig):
    """Hold back the steps of episodes that have not ended, and give whole episodes."""

    takes: ClassVar[tuple[str, ...]] = (EXPERIENCES,)
    needs: ClassVar[tuple[str, ...]] = (ENV_RUNNERS,)  # whose episodes it waits for


@dataclass(frozen=True)
class SelectExperiencesConfig(OperatorConfig):
    """Keep the experiences of some modules; an item without any is dropped."""

    modules: list[str] = option([], "ids of these modules")

    takes: ClassVar[tuple[str, ...]] = (EXPERIENCES,)


@dataclass(frozen=True)
class StandardizeFieldsConfig(OperatorConfig):
    """Shift and scale columns of each module's experiences to mean 0 and standard deviation 1."""

    fields: list[str] = option(["rewards"], "step columns of floats: rewards, or extra model outputs")

    takes: ClassVar[tuple[str, ...]] = (EXPERIENCES,)


@dataclass(frozen=True)
class BufferConfig(OperatorConfig):
    """Base of operators that work with a replay buffer."""

    buffer: str = option("replay", "name of the buffer in algorithm.replay_buffers")

    needs: ClassVar[tuple[str, ...]] = (REPLAY_BUFFERS,)


@dataclass(frozen=True)
class StoreToReplayBufferConfig(BufferConfig):
    """Write experiences to a replay buffer, and give them on."""

    takes: ClassVar[tuple[str, ...]] = (EXPERIENCES,)


@dataclass(frozen=True)
class ReplayConfig(BufferConfig):
    """Give experiences that are sampled from a replay buffer; wait until it holds enough."""

    num_env_steps: int | str = option(
        "auto", "env steps of an item; auto: the train batch of all learners", minimum=1, choices=("auto",)
    )
    learning_starts: int = option(0, "env steps that the buffer holds before the first item", minimum=0)

    gives: ClassVar[tuple[str, ...] | None] = (EXPERIENCES,)


@dataclass(frozen=True)
class MixInReplayConfig(BufferConfig):
    """Write experiences to a replay buffer, give them on, and after them some that were written before."""

    replay_proportion: float = option(1.0, "replayed items for each item; fractions add up", minimum=0)
    store: bool = option(True, "write the experiences to the buffer; false: its own are mixed in only")

    takes: ClassVar[tuple[str, ...]] = (EXPERIENCES,)


@dataclass(frozen=True)
class UpdatePrioritiesConfig(BufferConfig):
    """Make the errors of an update the priorities of the rows that it was made on."""

    column: str = option("td_error", "what the loss gives for each row")

    takes: ClassVar[tuple[str, ...]] = (TRAIN_RESULT,)


@dataclass(frozen=True)
class ComputeGradientsConfig(OperatorConfig):
    """Compute the gradient of the loss, and change nothing."""

    takes: ClassVar[tuple[str, ...]] = (EXPERIENCES,)
    gives: ClassVar[tuple[str, ...] | None] = (GRADIENTS,)
    needs: ClassVar[tuple[str, ...]] = (LEARNERS,)


@dataclass(frozen=True)
class AverageGradientsConfig(OperatorConfig):
    """Average gradients, weighted by the rows that they were computed on."""

    num_gradients: int | str = option(
        "auto", "gradients of an average; auto: one of each env runner", minimum=1, choices=("auto",)
    )

    takes: ClassVar[tuple[str, ...]] = (GRADIENTS,)


@dataclass(frozen=True)
class ApplyGradientsConfig(OperatorConfig):
    """Take an optimiser step with each gradient, and give env runners the new weights."""

    update_all: bool = option(True, "to all env runners; false: to the runner that the gradient is from")

    takes: ClassVar[tuple[str, ...]] = (GRADIENTS,)
    gives: ClassVar[tuple[str, ...] | None] = (TRAIN_RESULT,)
    needs: ClassVar[tuple[str, ...]] = (LEARNERS,)


@dataclass(frozen=True)
class TrainOneStepConfig(OperatorConfig):
    """Update the modules on each item, and give env runners the new weights."""

    takes: ClassVar[tuple[str, ...]] = (EXPERIENCES, RECORDED_BATCHES)
    gives: ClassVar[tuple[str, ...] | None] = (TRAIN_RESULT,)
    needs: ClassVar[tuple[str, ...]] = (LEARNERS,)


@dataclass(frozen=True)
class UpdateTargetNetworkConfig(OperatorConfig):
    """Move target networks towards the networks that they follow."""

    every: int = option(1, "how much passes between two updates, counted by `by`", minimum=1)
    by: str = option(
        "updates",
        "what is counted: sampled env steps, trained steps, or updates",
        choices=("env_steps", "trained_steps", "updates"),
    )
    tau: float = option(1.0, "share of the new parameters; 1 copies them", above=0, maximum=1)

    takes: ClassVar[tuple[str, ...]] = (TRAIN_RESULT,)
    needs: ClassVar[tuple[str, ...]] = (LEARNERS,)


@dataclass(frozen=True)
class BranchesConfig(OperatorConfig):
    """Base of operators that run several plans in turn."""

    plans: list[list[Any]] = option([], "plans, each a list of operators")
    mode: str = option(
        ROUND_ROBIN,
        "round_robin: items of each plan in turn, in fixed shares; async: of whichever plan has one",
        choices=(ROUND_ROBIN, ASYNC),
    )
    output_indexes: list[int] | None = option(None, "plans whose items are given on, from 0; null: all", minimum=0)
    round_robin_weights: list[int | str] | str | None = option(
        None,
        "items of each plan in a round; '*': as many as are ready; null: 1 each; auto: a plan that samples and one "
        "that trains, in the share that algorithm.training_intensity says",
        minimum=1,
        choices=("*", AUTO),
    )


@dataclass(frozen=True)
class ConcurrentlyConfig(BranchesConfig):
    """Run several plans in turn."""


@dataclass(frozen=True)
class DuplicateConfig(BranchesConfig):
    """Give each item to several plans, which run in turn."""

    takes: ClassVar[tuple[str, ...]] = ITEMS


@dataclass(frozen=True)
class EnqueueConfig(OperatorConfig):
    """Put items into a queue, and give them on."""

    queue: str = option("queue", "name of the queue")
    capacity: int = option(16, "items that the queue holds at most; the plan waits while it is full", minimum=1)

    takes: ClassVar[tuple[str, ...]] = ITEMS


@dataclass(frozen=True)
class DequeueConfig(OperatorConfig):
    """Take items out of a queue that another plan fills; gives what is put into it."""

    queue: str = option("queue", "name of the queue")


@dataclass(frozen=True)
class DebugPrintConfig(OperatorConfig):
    """Print what each item is, and give it on."""

    prefix: str = option("I saw", "text before the item")

    takes: ClassVar[tuple[str, ...]] = ITEMS


@dataclass(frozen=True)
class StandardMetricsReportingConfig(OperatorConfig):
    """End an iteration with an item, and report its metrics; every plan ends with it by itself."""

    min_env_steps: int | None = option(
        None,
        "env steps that are sampled in an iteration at least; null: algorithm.min_sample_timesteps_per_iteration",
        minimum=0,
    )

    takes: ClassVar[tuple[str, ...]] = ITEMS
    gives: ClassVar[tuple[str, ...] | None] = ("Result",)


OPERATORS: Mapping[str, type[OperatorConfig]] = {
    schema.__name__.removesuffix("Config"): schema
    for schema in (
        ParallelRolloutsConfig,
        ReadRecordedConfig,
        AsyncGradientsConfig,
        ConcatBatchesConfig,
        CompleteEpisodesConfig,
        SelectExperiencesConfig,
        StandardizeFieldsConfig,
        StoreToReplayBufferConfig,
        ReplayConfig,
        MixInReplayConfig,
        UpdatePrioritiesConfig,
        ComputeGradientsConfig,
        AverageGradientsConfig,
        ApplyGradientsConfig,
        TrainOneStepConfig,
        UpdateTargetNetworkConfig,
        ConcurrentlyConfig,
        DuplicateConfig,
        EnqueueConfig,
        DequeueConfig,
        DebugPrintConfig,
        StandardMetricsReportingConfig,
    )
}


def options_of(config: OperatorConfig) -> dict[str, Any]:
    """Return the options by name, without plans."""
    return {field.name: getattr(config, field.name) for field in fields(config) if field.name != "plans"}
