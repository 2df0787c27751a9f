"""Results of learner updates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from runner.pipelines.custom_metrics import ReducedMetrics


@dataclass(eq=False)  # one per update; frozen dataclasses take longer to create
class UpdateResult:
    """Result of an update.

    Attributes:
        metrics: metrics by module id, for updated modules only.
        connector_s: seconds that learner pipelines took.
        update_s: seconds in the learner, including its pipelines.
        rows: module id -> name -> (V, ...), values that the loss reported for each of the V rows with a loss, in the
            order of the rollout's rows.
        connector_metrics: metric of the run -> values that connectors of the learner pipelines reported.
        compile_s: seconds that compiling took.
    """

    metrics: dict[str, dict[str, float]]
    connector_s: float
    update_s: float
    rows: dict[str, dict[str, npt.NDArray[Any]]] = field(default_factory=dict)
    connector_metrics: ReducedMetrics = field(default_factory=dict)
    compile_s: float = 0.0


@dataclass
class RecordedUpdates:
    """Result of updates on recorded data.

    Attributes:
        metrics: metrics of each update, by module id.
        num_env_steps: total env steps of all learners.
        ends_pass: whether the last update ended a pass over the data.
        waiting_s, update_s, compile_s: seconds of waiting for batches, of updates, and of compiling during these.
        connector_metrics: metric of the run -> values that connectors of the learner pipelines reported for these
            batches.
    """

    metrics: list[dict[str, dict[str, float]]] = field(default_factory=list)
    num_env_steps: int = 0
    ends_pass: bool = False
    waiting_s: float = 0.0
    update_s: float = 0.0
    compile_s: float = 0.0
    connector_metrics: ReducedMetrics = field(default_factory=dict)
