"""Settings of a trial for Tune, and the names of the values it reports, now and in earlier starts.

Imports neither Ray nor torch.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.config.composed import Composed
from runner.config.schemas import ExperimentConfig
from runner.config.stored import compose_variant
from runner.config.validation import build_experiment_config
from runner.sweep.space import Combination, override_text

RUN = "run"  # key of `TrialSettings` in Tune's configuration of a trial; other keys are for the scheduler
# Keys of a trial's reports; Tune uses our names for its counts of iterations and seconds.
METRICS, OBJECTIVE, TIME, STOP_REASON = "metrics", "objective", "time", "stop_reason"

# Lines of progress.jsonl of trials from an earlier start as `OBJECTIVE` and `TIME`, by trial number.
Earlier = Mapping[int, Iterable[Mapping[str, Any]]]


@dataclass(frozen=True)
class TrialSettings:
    """Settings of a trial: its values, overrides of all trials, its folder, and a folder of configuration files."""

    number: int
    values: Combination
    fixed: tuple[str, ...]
    run_dir: str
    config_dir: str | None


def compose_trial(settings: TrialSettings) -> tuple[Composed, ExperimentConfig]:
    """Return the configuration of a trial, without display and tracking, which the sweep handles."""
    overrides = [override_text(key, value) for key, value in settings.values.items()]
    folder = None if settings.config_dir is None else Path(settings.config_dir)
    composed = compose_variant(settings.fixed, overrides, folder)
    experiment = build_experiment_config(composed)
    tracking = replace(experiment.tracking, mlflow=False, display="none")
    return composed, replace(experiment, tracking=tracking)


def clone_folder(run_dir: Path) -> Path:
    """Return the path of another trial's checkpoint from which this trial will continue."""
    return run_dir / "clone"


def remove_clone(run_dir: Path) -> None:
    """Remove a clone that has been used. A kill in the middle leaves nothing that looks like one."""
    removed = run_dir / ".clone.removed.tmp"
    shutil.rmtree(removed, ignore_errors=True)
    clone_folder(run_dir).rename(removed)
    shutil.rmtree(removed, ignore_errors=True)
