"""Tracking: progress.jsonl, result.json, MLflow in a separate process, and the output on the terminal.

This package imports neither MLflow nor rich: only the child process imports MLflow, only a live display imports rich.
"""

from runner.tracking.display import Display, DisplayInfo, LoggedDisplay, NoDisplay, PlainDisplay
from runner.tracking.display_modes import DisplayMode, make_display
from runner.tracking.headline import RunSummary, resume_command, summary_lines
from runner.tracking.known_run import StoreLocation, resolve_store, ui_command
from runner.tracking.mlflow_tracker import MLflowSettings, MLflowTracker, RunStatus
from runner.tracking.progress_log import ProgressLog, write_result
from runner.tracking.run_info import DataSet, flatten_parameters, git_revision, package_versions, run_info

__all__ = [
    "DataSet",
    "Display",
    "DisplayInfo",
    "DisplayMode",
    "LoggedDisplay",
    "MLflowSettings",
    "MLflowTracker",
    "NoDisplay",
    "PlainDisplay",
    "ProgressLog",
    "RunStatus",
    "RunSummary",
    "StoreLocation",
    "flatten_parameters",
    "git_revision",
    "make_display",
    "package_versions",
    "resolve_store",
    "resume_command",
    "run_info",
    "summary_lines",
    "ui_command",
    "write_result",
]
