"""The operators of plans."""

from runner.plans.operators.concurrency import Concurrently, Dequeue, Duplicate, Enqueue
from runner.plans.operators.experiences import CompleteEpisodes, ConcatBatches, SelectExperiences, StandardizeFields
from runner.plans.operators.recorded import ReadRecorded
from runner.plans.operators.reporting import DebugPrint, StandardMetricsReporting
from runner.plans.operators.rollouts import AsyncGradients, ParallelRollouts
from runner.plans.operators.training import (
    ApplyGradients,
    AverageGradients,
    ComputeGradients,
    TrainOneStep,
    UpdateTargetNetwork,
)

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
    "ParallelRollouts",
    "ReadRecorded",
    "SelectExperiences",
    "StandardMetricsReporting",
    "StandardizeFields",
    "TrainOneStep",
    "UpdateTargetNetwork",
]
