"""The data of a run that its page is drawn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.tracking.growing_columns import Column
from runner.tracking.series import last_values


@dataclass(frozen=True)
class RunData:
    """The state of a run.

    Attributes:
        path: its run dir.
        experiment: its name; the folder's name where it is not known.
        status: running, finished, failed, interrupted, or unfinished for a run that was killed.
        stop_reason: why it ended.
        columns: metrics by name, a number for each iteration; NaN where one is missing.
        axis: the metric that they are drawn over.
        environment: versions and machine.
        config: the configuration as YAML; empty if it is not there.
        overrides: the command line's.
        checkpoint: the newest one; empty if there is none.
        best_checkpoint: by `checkpoint.metric`; empty if there is none.
        videos: MP4 files of filmed episodes, the oldest first.
    """

    path: Path
    experiment: str
    status: str
    stop_reason: str
    columns: Mapping[str, Column]
    axis: str
    environment: Mapping[str, Any]
    config: str
    overrides: list[str]
    checkpoint: str
    videos: Sequence[Path] = ()
    best_checkpoint: str = ""

    @property
    def metrics(self) -> dict[str, float]:
        """The last number of each metric."""
        return last_values(self.columns)
