"""Training of a new run in its run dir, for `train`, `resume --module-only` and the runs of Hydra's sweepers."""

from __future__ import annotations

import time
from pathlib import Path

from runner.cli.checked_experiments import Checked
from runner.cli.ci import Verdict
from runner.experiment.run_folder import opened_run_folder


def train_in(run_dir: Path, checked: Checked, verdict: Verdict) -> int:
    """Train in a new folder, and return the exit code of `run_experiment`."""
    start_time_s = time.time()  # before torch is imported
    composed, config = checked
    with opened_run_folder(run_dir) as folder:
        from runner.experiment.run_experiment import run_experiment

        verdict.judge_run(config.experiment_name, folder.path)
        return run_experiment(config, composed, folder, start_time_s=start_time_s)
