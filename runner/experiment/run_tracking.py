"""The trackers of a run: MLflow and `tracking.extra_trackers`."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.checkpoints import read_manifest
from runner.checkpoints.checkpoint import origin_of
from runner.checkpoints.folder import module_sources
from runner.config.references import with_references
from runner.config.schemas import ExperimentConfig
from runner.experiment.mlflow_runs import (
    continued_run,
    experiment_name_of,
    find_store,
    information_tags,
    known_run,
    mlflow_settings,
    run_name_of,
)
from runner.tracking.further_trackers import FurtherTrackers, TrackedRun
from runner.tracking.headline import ENV_STEPS, Status
from runner.tracking.mlflow_tracker import MLflowSettings, MLflowTracker, RunStatus
from runner.tracking.run_info import DataSet, flatten_parameters

if TYPE_CHECKING:  # a sweep's driver process does not import torch
    from runner.experiment.trainer import TrainerProvenance
    from runner.plans import Result

# Longest waits at the end of a run: for the run's id from MLflow, and for MLflow to write everything.
_PATIENCE_S, _SHORT_PATIENCE_S = 30.0, 1.0
_MLFLOW_STATUS: Mapping[Status, RunStatus] = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_ARTIFACTS = (".hydra/config.yaml", ".hydra/overrides.yaml", "environment.json")
_log = logging.getLogger(__name__)


class RunTracking:
    """Records a run in MLflow, if `tracking.mlflow` is set, and in the trackers of `tracking.extra_trackers`.

    MLflow's process starts immediately and gets ready while the experiment is built.

    Args:
        config: configuration of the experiment.
        provenance: origin of the configuration, and the checkpoint that the run resumes.
        run_dir: run dir, which contains the configuration.
        info: git revision, versions and machine, see `run_info`.
        num_env_steps: env steps before the resume; zero if the run is new.
        start_time_s: Unix time of the start of the run, for MLflow.
        note: shows a line to the user.

    Attributes:
        uri: tracking URI of MLflow, or None without MLflow.
        status: final status of the run in MLflow.

    Raises:
        UserError: a tracker cannot be started.
    """

    status: Status = "failed"  # of a run that ends without another status
    _patience_s = _PATIENCE_S

    def __init__(
        self,
        config: ExperimentConfig,
        provenance: TrainerProvenance,
        run_dir: Path,
        info: Mapping[str, Any],
        num_env_steps: int,
        start_time_s: float,
        note: Callable[[str], None],
    ) -> None:
        resume_from, is_trusted = provenance.checkpoint, provenance.is_trusted
        parameters = flatten_parameters(with_references(dataclasses.asdict(config), provenance.composed.references))
        is_own = resume_from is None or is_trusted or origin_of(read_manifest(resume_from)) is None
        settings: MLflowSettings | None = None
        if config.tracking.mlflow:
            known = {} if resume_from is None else continued_run(resume_from.parent.parent, note, is_trusted)
            settings = dataclasses.replace(
                mlflow_settings(config, run_dir, find_store(config, run_dir, known, is_own), known),
                start_time_s=start_time_s,
                params=parameters,
                # A resumed run already has the tags of its sources.
                tags=information_tags(info) | ({} if resume_from else _source_tags(config)),
                artifacts=[(str(run_dir / name), "config") for name in _ARTIFACTS if (run_dir / name).exists()],
            )
        self.uri = None if settings is None else settings.tracking_uri
        experiment, name = experiment_name_of(config), run_name_of(config, run_dir)
        run = TrackedRun(run_dir, experiment, name, parameters, num_env_steps, is_own)
        self._further = FurtherTrackers(config.tracking.extra_trackers, run, note)
        self._mlflow = None if settings is None else MLflowTracker(settings, run_dir, warn=note)
        if self._mlflow is not None:
            self._mlflow.start()

    def log(self, result: Result) -> None:
        """Record an iteration."""
        self._further.log(result)
        if self._mlflow is not None:
            self._mlflow.log_metrics(int(result[ENV_STEPS] or 0), result)

    def log_data_sets(self, data_sets: Sequence[DataSet]) -> None:
        """Record the data sets that the run reads."""
        if self._mlflow is not None:
            self._mlflow.log_data_sets(data_sets)

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Store a file in the run's artifacts in MLflow."""
        if self._mlflow is not None:
            self._mlflow.log_artifact(path, folder)

    def run_id(self) -> str | None:
        """Return MLflow's id of the run, or None if it is unknown."""
        return None if self._mlflow is None else self._mlflow.run_id(self._patience_s)

    def stop_waiting(self) -> None:
        """Do not wait for MLflow, whose process continues to write."""
        self._patience_s = _SHORT_PATIENCE_S

    def close(self) -> None:
        """End the run in all trackers, and print a warning if MLflow has lost data."""
        self._further.close()
        warning = None
        if self._mlflow is not None:
            warning = self._mlflow.finish(_MLFLOW_STATUS[self.status], self._patience_s)
        if warning:
            _log.warning("%s", warning)
            with suppress(OSError):  # the terminal is closed
                print(warning, file=sys.stderr, flush=True)


def _source_tags(config: ExperimentConfig) -> dict[str, str]:
    """Return tags that name the sources of loaded modules."""
    sources = list(module_sources(config).values())
    run_ids = [known_run(source.checkpoint.parent.parent, is_trusted=True).get("run_id") for source in sources]
    values: dict[str, Sequence[str | None]] = {
        "load_state.checkpoint": [str(source.checkpoint) for source in sources],
        "load_state.digest": [source.digest for source in sources],
        "load_state.run_id": run_ids,
    }
    return {tag: ", ".join(dict.fromkeys(filter(None, found))) for tag, found in values.items() if any(found)}
