"""Training loops as dataflow: small, lazily evaluated steps that compose."""

from runner.dataflow.on_policy import on_policy
from runner.dataflow.run_metrics import RunMetrics
from runner.dataflow.steps import concat_batches, parallel_rollouts, report_metrics, train_one_step

__all__ = [
    "RunMetrics",
    "concat_batches",
    "on_policy",
    "parallel_rollouts",
    "report_metrics",
    "train_one_step",
]
