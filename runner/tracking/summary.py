"""The lines that close a run: how it ended, what it reached, where everything is, and what to type next."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field

from runner.tracking.headline import count_text, duration_text, number_text
from runner.tracking.mlflow_store import python_command, ui_command


@dataclass(frozen=True)
class RunSummary:
    """None where there is nothing to tell: that line is left out. `warnings` come last, one line each."""

    status: str  # finished, failed or interrupted
    stop_reason: str
    iterations: int
    env_steps: int
    time_s: float  # of the whole run, without the time between an end and a resume
    run_dir: str | os.PathLike[str]
    rows_read: int | None = None  # of recorded data, by this process
    rows_per_s: float | None = None  # None where they were read at the start
    last_return: float | None = None
    best_return: float | None = None
    evaluation_return: float | None = None
    checkpoint: str | os.PathLike[str] | None = None
    tracking_uri: str | None = None
    resume_command: str | None = None
    warnings: list[str] = field(default_factory=list)


def summary_lines(summary: RunSummary) -> list[str]:
    """Return what `Display.finish` takes."""
    steps_per_s = summary.env_steps / summary.time_s if summary.time_s > 0 else None
    rows = {
        "iterations": count_text(summary.iterations),
        "env steps": f"{count_text(summary.env_steps)} ({count_text(steps_per_s)} per second)",
        "rows read": _rows_text(summary),
        "time": _time_text(summary.time_s),
        "return": _return_text(summary),
        "run dir": os.fspath(summary.run_dir),
        "checkpoint": None if summary.checkpoint is None else os.fspath(summary.checkpoint),
        "MLflow": None if summary.tracking_uri is None else ui_command(summary.tracking_uri),
        "resume": summary.resume_command,
    }
    lines = [f"{summary.status}: {summary.stop_reason}"]
    lines += [f"  {label:<10}  {text}" for label, text in rows.items() if text is not None]
    return lines + [f"warning: {text}" for text in summary.warnings]


def resume_command(run_dir: str | os.PathLike[str]) -> str:
    """Return what to type to go on with the run in `run_dir`."""
    return _command("resume", run_dir)


def report_command(run_dir: str | os.PathLike[str]) -> str:
    """Return what to type to get the page of the run in `run_dir`."""
    return _command("report", run_dir)


def _command(verb: str, run_dir: str | os.PathLike[str]) -> str:
    return f"{python_command()} -m runner {verb} {shlex.quote(os.fspath(run_dir))}"


def _time_text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else duration_text(seconds)


def _rows_text(summary: RunSummary) -> str | None:
    if summary.rows_read is None:
        return None
    rate = "" if summary.rows_per_s is None else f" ({count_text(summary.rows_per_s)} per second)"
    return f"{count_text(summary.rows_read)}{rate}"


def _return_text(summary: RunSummary) -> str | None:
    numbers = {"last": summary.last_return, "best": summary.best_return}
    numbers["evaluation"] = summary.evaluation_return
    shown = [f"{label} {number_text(value)}" for label, value in numbers.items() if value is not None]
    return ", ".join(shown) or None
