"""Runs below a folder: their states, curves and configurations. Files of runs are read as data only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np

from runner.config.errors import RunnerError
from runner.config.yaml_files import YAMLError, read_yaml
from runner.pages.run_record import read_run
from runner.report.sweep_record import shorten
from runner.tracking.run_info import flatten_parameters
from runner.tracking.series import Column, last_values

RUN_FILES = ("progress.jsonl", ".hydra/config.yaml")
MOST_RUNS = 1000
_DEEPEST = 8  # levels of folders below the first one
_WITHOUT_RUNS = frozenset({"checkpoints", "mlflow-artifacts", "mlruns", "videos"})
_STARTED = re.compile(r"(\d{4}-\d{2}-\d{2})/(\d{2})-(\d{2})-(\d{2})(?:_\d+)?$")
_MOST_LETTERS = 300  # of a value of a configuration

BROKEN = "unreadable"


@dataclass(frozen=True)
class RunEntry:
    """A run in the list.

    Attributes:
        path: run dir, relative to the folder of the list.
        experiment: name of the experiment, or of the folder if it is unknown.
        status: running, finished, failed, interrupted, unfinished or unreadable.
        reason: why it ended, or why it cannot be read.
        started: start as `YYYY-MM-DD hh:mm:ss`, or empty if it is unknown.
        columns: metric -> one number per iteration; NaN if it is missing.
        config: key -> value as text.
    """

    path: str
    experiment: str
    status: str
    reason: str
    started: str = ""
    columns: Mapping[str, Column] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)

    def last(self, metric: str) -> float | None:
        """Return the last number of a metric, or None if there is none."""
        column = self.columns.get(metric)
        return None if column is None else last_values({metric: column})[metric]

    def best(self, metric: str) -> float | None:
        """Return the largest number of a metric, or None if there is none."""
        column = self.columns.get(metric)
        return None if column is None else float(np.nanmax(column))


@dataclass(frozen=True)
class RunsRecord:
    """Runs below a folder.

    Attributes:
        path: the folder.
        runs: runs, the newest first.
        num_left_out: older runs beyond `MOST_RUNS`.
    """

    path: Path
    runs: list[RunEntry]
    num_left_out: int = 0


def find_runs(folder: Path) -> list[Path]:
    """Return the run dirs below a folder, the newest first. Links are not followed."""
    return sorted(_run_dirs(folder), key=lambda path: (_started(path), str(path)), reverse=True)


def _run_dirs(folder: Path) -> Iterator[Path]:
    for place, names, _ in os.walk(folder):
        path = Path(place)
        if _is_run(path):
            yield path
            names.clear()
        elif len(path.relative_to(folder).parts) >= _DEEPEST:
            names.clear()
        names[:] = [name for name in names if name not in _WITHOUT_RUNS and not name.startswith(".")]


def _is_run(path: Path) -> bool:
    try:
        return any((path / name).exists() for name in RUN_FILES)
    except OSError:  # no permission
        return False


def read_runs(folder: Path) -> RunsRecord:
    """Read all runs below a folder. A run that cannot be read is listed with the reason."""
    found = find_runs(folder)
    runs = [_read(path, path.relative_to(folder).as_posix()) for path in found[:MOST_RUNS]]
    return RunsRecord(folder, runs, len(found[MOST_RUNS:]))


def _read(path: Path, name: str) -> RunEntry:
    try:
        record = read_run(path)
    except (OSError, RunnerError, ValueError) as error:
        reason = f"{RUN_FILES[0]} cannot be read: {getattr(error, 'strerror', None) or error}"
        return RunEntry(name, path.absolute().name, BROKEN, reason, _started(path))
    return RunEntry(
        path=name,
        experiment=record.experiment,
        status=record.status,
        reason=record.stop_reason.partition("\n")[0],
        started=_started(path),
        columns=record.columns,
        config=_read_config(path / ".hydra" / "config.yaml"),
    )


def _started(path: Path) -> str:
    """Return the start from the name of the run dir, or else the time of its configuration."""
    if match := _STARTED.search(path.as_posix()):
        return f"{match[1]} {match[2]}:{match[3]}:{match[4]}"
    for name in (".hydra/config.yaml", "progress.jsonl"):
        try:
            seconds = (path / name).stat().st_mtime
        except OSError:
            continue
        return datetime.fromtimestamp(seconds).isoformat(" ", "seconds")
    return ""


def _read_config(file: Path) -> dict[str, str]:
    try:
        content = read_yaml(file)
        values = flatten_parameters(content) if isinstance(content, dict) else {}
    except (OSError, ValueError, RecursionError, YAMLError):
        return {}
    return {key: shorten(text, _MOST_LETTERS) for key, text in values.items()}


def differing_keys(runs: list[RunEntry]) -> list[str]:
    """Return the keys whose values differ between runs that have a configuration, in order."""
    known = [run.config for run in runs if run.config]
    keys = dict.fromkeys(key for config in known for key in config)
    return [key for key in keys if len({config.get(key) for config in known}) > 1]
