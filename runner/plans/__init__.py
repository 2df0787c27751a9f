"""Execution plans: a training loop as operators on flows of items, and the context that they work with."""

from runner.plans.context import NotReady, PlanContext
from runner.plans.episode_metrics import Result
from runner.plans.items import Experiences, Gradients, Item, IterationEnd, Origin, TrainResult
from runner.plans.operator import Branch, Node, Operator, PlanEnded, Source
from runner.plans.operators.concurrency import Concurrently, Dequeue, Duplicate, Enqueue
from runner.plans.operators.experiences import CompleteEpisodes, ConcatBatches, SelectExperiences, StandardizeFields
from runner.plans.operators.recorded import ReadRecorded
from runner.plans.operators.replay import MixInReplay, Replay, StoreToReplayBuffer, UpdatePriorities
from runner.plans.operators.reporting import DebugPrint, StandardMetricsReporting
from runner.plans.operators.rollouts import AsyncGradients, ParallelRollouts
from runner.plans.operators.training import (
    ApplyGradients,
    AverageGradients,
    ComputeGradients,
    TrainOneStep,
    UpdateTargetNetwork,
)
from runner.plans.plan import Plan
from runner.plans.reading import make_plan
from runner.plans.recorded_batches import RecordedBatches
from runner.plans.run_metrics import RunMetrics

__all__ = [
    "ApplyGradients",
    "AsyncGradients",
    "AverageGradients",
    "Branch",
    "CompleteEpisodes",
    "ComputeGradients",
    "ConcatBatches",
    "Concurrently",
    "DebugPrint",
    "Dequeue",
    "Duplicate",
    "Enqueue",
    "Experiences",
    "Gradients",
    "Item",
    "IterationEnd",
    "MixInReplay",
    "Node",
    "NotReady",
    "Operator",
    "Origin",
    "ParallelRollouts",
    "Plan",
    "PlanContext",
    "PlanEnded",
    "ReadRecorded",
    "RecordedBatches",
    "Replay",
    "Result",
    "RunMetrics",
    "SelectExperiences",
    "Source",
    "StandardMetricsReporting",
    "StandardizeFields",
    "StoreToReplayBuffer",
    "TrainOneStep",
    "TrainResult",
    "UpdatePriorities",
    "UpdateTargetNetwork",
    "make_plan",
]
