"""What MLflow gets of several seeds, read back through its own API."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from runner.config.compose import compose_experiment
from runner.config.validation import build_experiment_config
from runner.sweep.reporting import SweepTracking
from runner.sweep.trials import SweepFolder
from runner.tracking.progress_log import ProgressLog

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's database library warns about MLflow

METRIC, STEPS = "env_runners/episode_return_mean", "num_env_steps_sampled_lifetime"
REACHED = {0.001: (10.0, 20.0, 30.0, 40.0), 0.002: (100.0, 200.0, 300.0, 900.0)}  # by learning rate, a seed each


def test_the_statistics_of_seeds(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    config = build_experiment_config(
        compose_experiment(["+experiment=ppo_cartpole", f"tracking.tracking_uri=sqlite:///{tmp_path / 'mlflow.db'}"])
    )
    space = {"algorithm.lr": ["0.001", "0.002"], "seed": ["0", "1", "2", "3"]}
    folder = SweepFolder.start_in(tmp_path / "s", "e", config.objectives, {"overrides": [], "space": space}, False)
    for lr, reached in REACHED.items():
        for seed, value in enumerate(reached):
            trial = folder.add({"algorithm.lr": lr, "seed": str(seed)})
            trial.status, trial.result = "finished", {METRIC: value, STEPS: 2000}
            progress = ProgressLog(folder.run_dir(trial) / "progress.jsonl")
            for iteration in (1, 2):
                progress.append(
                    {"training_iteration": iteration, STEPS: 1000 * iteration, METRIC: value * iteration / 2}
                )
            progress.close()
    SweepTracking(config, folder, lambda _: config).finish("FINISHED")
    run_id = json.loads((tmp_path / "s" / "mlflow_run.json").read_text())["run_id"]
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    metrics = client.get_run(run_id).data.metrics
    assert metrics[f"seeds/mean/{METRIC}"] == 375.0
    assert metrics[f"seeds/iqm/{METRIC}"] == 250.0  # of 200 and 300
    assert 100.0 <= metrics[f"seeds/low/{METRIC}"] < 250.0 < metrics[f"seeds/high/{METRIC}"] <= 900.0
    points = client.get_metric_history(run_id, f"seeds/iqm/{METRIC}")
    assert (points[0].step, points[0].value) == (1000, 125.0)
    assert points[-1].step == 2000
    with Path(client.download_artifacts(run_id, "seeds.csv")).open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["values"], float(row["iqm"]), row["num"]) for row in rows] == [
        ("algorithm.lr=0.002", 250.0, "4"),
        ("algorithm.lr=0.001", 25.0, "4"),
    ]
    assert client.get_run(run_id).data.params["best.trial"] == "7"


@pytest.mark.slow
def test_a_sweep_that_ends_before_its_first_trial(tmp_path: Path) -> None:
    config = build_experiment_config(
        compose_experiment(["+experiment=ppo_cartpole", f"tracking.tracking_uri=sqlite:///{tmp_path / 'mlflow.db'}"])
    )
    folder = SweepFolder.start_in(
        tmp_path / "s", "e", config.objectives, {"overrides": [], "space": {"seed": ["0", "1"]}}, False
    )
    SweepTracking(config, folder, lambda _: config).finish("FAILED")
    assert (tmp_path / "s" / "mlflow_run.json").exists()
