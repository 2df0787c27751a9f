"""Operators of execution plans: their options, the items that they take and give, and the parts that they need.

`runner/plans` implements the operators. This module imports neither torch nor Ray, so plans are checked early.
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

# Parts of the run that operators use.
ENV_RUNNERS = "env_runners"
RECORDED_DATA = "recorded_data"
LEARNERS = "learners"
REPLAY_BUFFERS = "replay_buffers"
QUEUES = "queues"

ROUND_ROBIN, ASYNC = "round_robin", "async"
AUTO = "auto"


@dataclass(frozen=True)
class OperatorConfig:
    """Base class of the options of built-in operators; the operator has the name of the class without `Config`.

    Custom operators declare `takes`, `gives` and `needs` in their own class.

    Attributes:
        takes: types of items that the operator accepts. Empty: a source, which begins a plan.
        gives: types of items that it returns. None: the items that it takes.
        needs: parts of the run that it uses.
    """

    takes: ClassVar[tuple[str, ...]] = ()
    gives: ClassVar[tuple[str, ...] | None] = None
    needs: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class AsyncRequestsConfig(OperatorConfig):
    """Base class of operators that send requests to env runners while the plan continues."""

    num_async: int = option(1, "requests in flight per env runner", minimum=1)
    max_weights_lag: int | None = option(
        None,
        "updates after which the plan waits for an outstanding answer before it takes others; null: no limit",
        unit="updates",
        minimum=0,
    )
    deterministic: bool = option(
        False,
        "take answers in the order of their requests, so that a run gives the same results in one process, on Ray, and "
        "after a kill; the plan waits for slow env runners",
    )

    needs: ClassVar[tuple[str, ...]] = (ENV_RUNNERS,)


@dataclass(frozen=True)
class ParallelRolloutsConfig(AsyncRequestsConfig):
    """Sample with all env runners; `num_async`, `max_weights_lag` and `deterministic` apply to mode async."""

    mode: str = option(
        "bulk_sync",
        "bulk_sync: one item per round with the samples of all runners; raw: one item per round and runner; async: the "
        "samples of each runner as soon as they are ready",
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
    """Compute gradients on env runners from their own samples, and return each gradient when it is ready."""

    gives: ClassVar[tuple[str, ...] | None] = (GRADIENTS,)


@dataclass(frozen=True)
class ConcatBatchesConfig(OperatorConfig):
    """Concatenate experiences until they fill a train batch."""

    min_env_steps: int | str = option(
        "auto",
        "minimum env steps of an item; auto: the train batch of all learners",
        minimum=1,
        choices=("auto",),
    )

    takes: ClassVar[tuple[str, ...]] = (EXPERIENCES,)


@dataclass(frozen=True)
class CompleteEpisodesConfig(OperatorConfig):
    """Keep the steps of unfinished episodes, and return episodes when they are complete."""

    takes: ClassVar[tuple[str, ...]] = (EXPERIENCES,)
    needs: ClassVar[tuple[str, ...]] = (ENV_RUNNERS,)  # whose episodes it waits for


@dataclass(frozen=True)
class SelectExperiencesConfig(OperatorConfig):
    """Keep the experiences of some modules; drop items that contain none."""

    modules: list[str] = option([], "ids of the modules to keep; an auxiliary module gets a copy of its experiences")

    takes: ClassVar[tuple[str, ...]] = (EXPERIENCES,)


@dataclass(frozen=True)
class StandardizeFieldsConfig(OperatorConfig):
    """Standardise columns of each module's experiences to mean 0 and standard deviation 1."""

    fields: list[str] = option(["rewards"], "step columns of floats: rewards, or extra model outputs")

    takes: ClassVar[tuple[str, ...]] = (EXPERIENCES,)


@dataclass(frozen=True)
class BufferConfig(OperatorConfig):
    """Base class of operators that use a replay buffer."""

    buffer: str = option("replay", "name of the buffer in algorithm.replay_buffers")

    needs: ClassVar[tuple[str, ...]] = (REPLAY_BUFFERS,)


@dataclass(frozen=True)
class StoreToReplayBufferConfig(BufferConfig):
    """Store experiences in a replay buffer, and return them."""

    takes: ClassVar[tuple[str, ...]] = (EXPERIENCES,)


@dataclass(frozen=True)
class ReplayConfig(BufferConfig):
    """Sample experiences from a replay buffer; wait until it contains enough."""

    num_env_steps: int | str = option(
        "auto", "env steps per item; auto: the train batch of all learners", minimum=1, choices=("auto",)
    )
    learning_starts: int = option(0, "env steps in the buffer before the first item", minimum=0)

    gives: ClassVar[tuple[str, ...] | None] = (EXPERIENCES,)


@dataclass(frozen=True)
class MixInReplayConfig(BufferConfig):
    """Store experiences, then return them followed by replayed experiences."""

    replay_proportion: float = option(1.0, "replayed items per item; fractions accumulate", minimum=0)
    store: bool = option(True, "store the experiences in the buffer; false: only mix in its contents")

    takes: ClassVar[tuple[str, ...]] = (EXPERIENCES,)


@dataclass(frozen=True)
class UpdatePrioritiesConfig(BufferConfig):
    """Set the priorities of an update's rows to their errors."""

    column: str = option("td_error", "row field of the loss record")

    takes: ClassVar[tuple[str, ...]] = (TRAIN_RESULT,)


@dataclass(frozen=True)
class ComputeGradientsConfig(OperatorConfig):
    """Compute the gradient of the loss without updating parameters."""

    takes: ClassVar[tuple[str, ...]] = (EXPERIENCES,)
    gives: ClassVar[tuple[str, ...] | None] = (GRADIENTS,)
    needs: ClassVar[tuple[str, ...]] = (LEARNERS,)


@dataclass(frozen=True)
class AverageGradientsConfig(OperatorConfig):
    """Average gradients, weighted by their numbers of rows."""

    num_gradients: int | str = option(
        "auto", "gradients per average; auto: one per env runner", minimum=1, choices=("auto",)
    )

    takes: ClassVar[tuple[str, ...]] = (GRADIENTS,)


@dataclass(frozen=True)
class ApplyGradientsConfig(OperatorConfig):
    """Take one optimiser step per gradient, and send the new weights to env runners."""

    update_all: bool = option(
        True, "send the weights to all env runners; false: to the runner that computed the gradient"
    )

    takes: ClassVar[tuple[str, ...]] = (GRADIENTS,)
    gives: ClassVar[tuple[str, ...] | None] = (TRAIN_RESULT,)
    needs: ClassVar[tuple[str, ...]] = (LEARNERS,)


@dataclass(frozen=True)
class TrainOneStepConfig(OperatorConfig):
    """Update the modules on each item, and send the new weights to env runners."""

    modules: list[str] | None = option(
        None, "ids of the modules to update on sampled experiences; null: all modules with experiences in the item"
    )

    takes: ClassVar[tuple[str, ...]] = (EXPERIENCES, RECORDED_BATCHES)
    gives: ClassVar[tuple[str, ...] | None] = (TRAIN_RESULT,)
    needs: ClassVar[tuple[str, ...]] = (LEARNERS,)


@dataclass(frozen=True)
class UpdateTargetNetworkConfig(OperatorConfig):
    """Update target networks towards their source networks."""

    every: int = option(1, "interval between two updates, in units of `by`", minimum=1)
    by: str = option(
        "updates",
        "unit of `every`: sampled env steps, trained steps, or updates",
        choices=("env_steps", "trained_steps", "updates"),
    )
    tau: float = option(1.0, "Polyak factor; 1 copies the parameters", above=0, maximum=1)

    takes: ClassVar[tuple[str, ...]] = (TRAIN_RESULT,)
    needs: ClassVar[tuple[str, ...]] = (LEARNERS,)


@dataclass(frozen=True)
class BranchesConfig(OperatorConfig):
    """Base class of operators that run several branches in turn."""

    plans: list[list[Any]] = option([], "branches, each a list of operators")
    mode: str = option(
        ROUND_ROBIN,
        "round_robin: take items from the branches in turn, in fixed shares; async: from any branch that has one",
        choices=(ROUND_ROBIN, ASYNC),
    )
    output_indexes: list[int] | None = option(
        None, "indices (from 0) of the branches whose items are returned; null: all", minimum=0
    )
    round_robin_weights: list[int | str] | str | None = option(
        None,
        "items per branch and round; '*': all that are ready; null: 1 each; auto: for a sampling and a training "
        "branch, in the ratio of algorithm.training_intensity",
        minimum=1,
        choices=("*", AUTO),
    )


@dataclass(frozen=True)
class ConcurrentlyConfig(BranchesConfig):
    """Run several branches in turn."""


@dataclass(frozen=True)
class DuplicateConfig(BranchesConfig):
    """Pass each item to several branches, which run in turn."""

    takes: ClassVar[tuple[str, ...]] = ITEMS


@dataclass(frozen=True)
class EnqueueConfig(OperatorConfig):
    """Put items into a queue, and return them."""

    queue: str = option("queue", "name of the queue")
    capacity: int = option(16, "maximum number of items in the queue; the plan waits while it is full", minimum=1)

    takes: ClassVar[tuple[str, ...]] = ITEMS


@dataclass(frozen=True)
class DequeueConfig(OperatorConfig):
    """Take items from a queue that another branch fills."""

    queue: str = option("queue", "name of the queue")


@dataclass(frozen=True)
class DebugPrintConfig(OperatorConfig):
    """Print a description of each item, and return the item."""

    prefix: str = option("I saw", "text before the item")

    takes: ClassVar[tuple[str, ...]] = ITEMS


@dataclass(frozen=True)
class StandardMetricsReportingConfig(OperatorConfig):
    """End an iteration with an item; the trainer then reports the metrics. Every plan ends with it automatically."""

    min_env_steps: int | None = option(
        None,
        "minimum sampled env steps per iteration; null: algorithm.min_sample_timesteps_per_iteration",
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
