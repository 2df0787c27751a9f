"""Tracking: progress.jsonl, result.json, MLflow in a separate process, and the output on the terminal.

This package imports neither MLflow nor rich: only the child process imports MLflow, only a live display imports rich.
"""

from runner.tracking.display import DisplayInfo, LoggedDisplay
from runner.tracking.display_modes import make_display
from runner.tracking.headline import RunSummary, resume_command, summary_lines
from runner.tracking.known_run import StoreLocation, resolve_store
from runner.tracking.mlflow_tracker import MLflowSettings, MLflowTracker, RunStatus
from runner.tracking.progress_log import ProgressLog, write_result
from runner.tracking.run_info import DataSet, flatten_parameters, run_info

__all__ = [
    "DataSet",
    "DisplayInfo",
    "LoggedDisplay",
    "MLflowSettings",
    "MLflowTracker",
    "ProgressLog",
    "RunStatus",
    "RunSummary",
    "StoreLocation",
    "flatten_parameters",
    "make_display",
    "resolve_store",
    "resume_command",
    "run_info",
    "summary_lines",
    "write_result",
]
