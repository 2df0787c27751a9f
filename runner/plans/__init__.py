"""Execution plans: a training loop as operators on flows of items, and the resources that they work with."""

from runner.plans.flow import Flow, Operator, Source, Waiting
from runner.plans.items import Experiences, Gradients, Item, Origin, TrainResult
from runner.plans.operators import (
    ApplyGradients,
    AsyncGradients,
    AverageGradients,
    CompleteEpisodes,
    ComputeGradients,
    ConcatBatches,
    Concurrently,
    DebugPrint,
    Dequeue,
    Duplicate,
    Enqueue,
    ParallelRollouts,
    ReadRecorded,
    SelectExperiences,
    StandardizeFields,
    StandardMetricsReporting,
    TrainOneStep,
    UpdateTargetNetwork,
)
from runner.plans.reading import make_plan
from runner.plans.recorded_batches import RecordedBatches
from runner.plans.resources import Resources
from runner.plans.run_metrics import Result, RunMetrics

__all__ = [
    "ApplyGradients",
    "AsyncGradients",
    "AverageGradients",
    "CompleteEpisodes",
    "ComputeGradients",
    "ConcatBatches",
    "Concurrently",
    "DebugPrint",
    "Dequeue",
    "Duplicate",
    "Enqueue",
    "Experiences",
    "Flow",
    "Gradients",
    "Item",
    "Operator",
    "Origin",
    "ParallelRollouts",
    "ReadRecorded",
    "RecordedBatches",
    "Resources",
    "Result",
    "RunMetrics",
    "SelectExperiences",
    "Source",
    "StandardMetricsReporting",
    "StandardizeFields",
    "TrainOneStep",
    "TrainResult",
    "UpdateTargetNetwork",
    "Waiting",
    "make_plan",
]
