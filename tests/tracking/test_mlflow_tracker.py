"""Real MLflow on SQLite. Its import takes seconds, so a few child processes serve all tests, side by side."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from runner.tracking import mlflow_tracker, mlflow_writer
from runner.tracking.known_run import StoreLocation, resolve_store
from runner.tracking.mlflow_tracker import MLflowSettings, MLflowTracker
from runner.tracking.run_info import DataSet
from tests.conftest import WAIT_S, wait_until

pytestmark = pytest.mark.filterwarnings("ignore")  # SQLAlchemy deprecates what MLflow uses

ROOT = Path(__file__).parents[2]
STARTED_S = 1_700_000_000.25
LOSS = "learners/default_policy/policy_loss"

TRAINING = DataSet("expert", "a1b2", "training", "local", {"uri": "/data/expert"}, {"obs": "list"}, {"num_files": 2})
HELD_OUT = DataSet("held out", "c3d4", "evaluation", "s3", {"uri": "s3://x", "paths": ["y" * 80_000]})

DYING_TRAINER = """
import os, sys, time
from runner.tracking.mlflow_tracker import MLflowSettings, MLflowTracker
uri, artifacts, run_dir, forks = sys.argv[1:]
tracker = MLflowTracker(MLflowSettings(uri, artifacts, "killed", flush_interval_s=60.0), run_dir)
tracker.start()
tracker.log_metrics(100, {"loss": 0.5})
run_id = tracker.run_id(60.0)
bystander = os.fork() if forks == "1" else 0
if forks == "1" and bystander == 0:
    os.close(1)
    time.sleep(120)
print(run_id, bystander, flush=True)
time.sleep(120)
"""


@dataclass
class Tracked:
    """A tracker that has finished, and what it said."""

    run_id: str | None
    report: str | None
    warnings: list[str]
    finish_asked_s: float


@dataclass
class World:
    """The store that all tests look at."""

    folder: Path
    location: StoreLocation
    client: MlflowClient
    runs: dict[str, Tracked]

    def run(self, name: str) -> Run:
        run_id = self.runs[name].run_id
        assert run_id is not None
        return self.client.get_run(run_id)


def settings_of(location: StoreLocation, **changes: object) -> MLflowSettings:
    settings = MLflowSettings(location.tracking_uri, location.artifact_location, "ppo_cartpole", "first")
    return replace(settings, **{"flush_interval_s": 0.2, **changes})  # type: ignore[arg-type]


def full_settings(folder: Path, location: StoreLocation) -> MLflowSettings:
    config = folder / "config.yaml"
    config.write_text("seed: 1\n")
    params = {"algorithm.lr": "0.001", "algorithm.gamma": "0.99", "seed": "1", "long": "x" * 10_000}
    params |= {f"many.{i}": str(i) for i in range(150)} | {"odd[0]": "\u00e9" * 6000}
    return settings_of(
        location,
        params=params,
        tags={"git.revision": "abc", "long": "y" * 10_000},
        artifacts=[(str(config), "configuration")],
        start_time_s=STARTED_S,
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("outputs with a space")
    location = resolve_store(None, None, folder, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_RUN_ID", "0123456789abcdef0123456789abcdef")
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        patch.chdir(folder)
        runs = first_runs(folder, location)
        first_id = runs["first"].run_id
        assert first_id is not None
        runs |= {"resumed": resume(folder, location, first_id)}
    client = MlflowClient(tracking_uri=location.tracking_uri)
    yield World(folder, location, client, runs)
    client._tracking_client.store._dispose_engine()


def first_runs(folder: Path, location: StoreLocation) -> dict[str, Tracked]:
    """Two trackers that start together on a database that is not there yet."""
    warnings: list[str] = []
    first = MLflowTracker(full_settings(folder, location), folder / "first", warnings.append)
    second = MLflowTracker(settings_of(location, run_name="second"), folder / "second", warnings.append)
    for tracker in (first, second):
        tracker.start()
    for iteration in range(1, 31):
        metrics = {
            LOSS: 1.0 / iteration,
            "env_runners/episode_return_mean": np.float32(iteration),
            "odd[1]": 1,
        }
        metrics |= {f"filler/{i}": 0.5 for i in range(40)}
        first.log_metrics(4000 * iteration, metrics, time_s=1.7e9 + iteration)
        second.log_metrics(iteration, {"loss": iteration})
    first.log_metrics(124_000, {"nan": float("nan"), "inf": float("inf"), "text": "no number", "flag": True})
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "manifest.json").write_text("{}")
    first.log_artifact(folder / "checkpoint")
    first.log_artifact(folder / "no such file")
    first.log_data_sets([TRAINING, HELD_OUT])
    first.log_data_sets([replace(TRAINING, digest="x" * 100)])  # more than MLflow takes
    second.log_data_sets([TRAINING, replace(TRAINING, context="evaluation")])
    run_ids = [tracker.run_id(WAIT_S) for tracker in (first, second)]
    asked_s = time.time()
    reports = [first.finish("FINISHED", WAIT_S), second.finish("FAILED", WAIT_S)]
    names = ("first", "second")
    return {n: Tracked(i, r, warnings, asked_s) for n, i, r in zip(names, run_ids, reports, strict=True)}


def resume(folder: Path, location: StoreLocation, run_id: str) -> Tracked:
    """Two resumes in a row: the second takes one of the first one's overrides back."""
    warnings: list[str] = []
    settings = full_settings(folder, location)
    for gamma in ("0.5", "0.99"):
        changed = {**settings.params, "algorithm.lr": "0.1", "algorithm.gamma": gamma, "added": "new"}
        resumed = replace(settings, run_id=run_id, params=changed, artifacts=(), start_time_s=STARTED_S + 1000)
        tracker = MLflowTracker(resumed, folder / "first", warnings.append)
        tracker.start()
        tracker.log_metrics(200_000, {LOSS: 0.01})
        tracker.log_data_sets([TRAINING])
        asked_s = time.time()  # the child is still importing MLflow
        report = tracker.finish("KILLED", WAIT_S)
    return Tracked(tracker.run_id(), report, warnings, asked_s)


def test_metrics_are_on_the_step_axis(world: World) -> None:
    run_id = world.runs["first"].run_id
    assert run_id is not None
    history = world.client.get_metric_history(run_id, LOSS)[:30]
    assert [(m.step, m.value) for m in history] == [(4000 * i, 1.0 / i) for i in range(1, 31)]
    assert [m.timestamp for m in history] == [int((1.7e9 + i) * 1000) for i in range(1, 31)]
    assert world.run("first").data.metrics["env_runners/episode_return_mean"] == 30.0
    assert world.run("second").data.metrics == {"loss": 30.0}


def test_a_run_starts_and_ends_when_the_trainer_says(world: World) -> None:
    for name in ("first", "resumed"):
        assert world.run(name).info.start_time == int(STARTED_S * 1000)
    asked_s = world.runs["resumed"].finish_asked_s
    assert world.run("resumed").info.end_time / 1000 == pytest.approx(asked_s, abs=0.5)


def test_only_finite_numbers_are_metrics(world: World) -> None:
    assert not {"nan", "inf", "text", "flag"} & set(world.run("first").data.metrics)


def test_params_and_tags_fit_the_limits_of_mlflow(world: World) -> None:
    data = world.run("first").data
    assert len(data.params) == 155 + 1  # one more by the resume
    assert data.params["algorithm.lr"] == "0.001"
    assert data.params["long"] == "x" * 5997 + "..."
    assert data.params["odd:5b:0:5d:"] == "\u00e9" * 6000
    assert data.metrics["odd:5b:1:5d:"] == 1.0
    assert data.tags["git.revision"] == "abc"
    assert len(data.tags["long"]) == 8000


def test_artifacts_lie_under_the_explicit_location(world: World) -> None:
    run_id = world.runs["first"].run_id
    assert run_id is not None
    assert [f.path for f in world.client.list_artifacts(run_id, "configuration")] == ["configuration/config.yaml"]
    assert [f.path for f in world.client.list_artifacts(run_id, "checkpoint")] == ["checkpoint/manifest.json"]
    assert (world.folder / "mlflow-artifacts" / run_id / "artifacts" / "configuration" / "config.yaml").exists()
    assert not (world.folder / "mlruns").exists()


def test_data_sets_are_inputs_of_the_run_once_also_after_a_resume(world: World) -> None:
    inputs = {own.dataset.name: own for own in world.run("first").inputs.dataset_inputs}
    assert len(world.run("first").inputs.dataset_inputs) == len(inputs) == 2
    expert = inputs["expert"].dataset
    assert (expert.digest, expert.source_type, expert.source) == ("a1b2", "local", '{"uri": "/data/expert"}')
    columns = [{"name": "obs", "type": "list", "required": True}]
    assert json.loads(expert.schema or "") == {"mlflow_colspec": columns}
    assert json.loads(expert.profile or "") == {"num_files": 2}
    assert inputs["held out"].dataset.source == '{"uri": "s3://x"}'
    tags = {name: [(tag.key, tag.value) for tag in own.tags] for name, own in inputs.items()}
    context = "mlflow.data.context"
    assert tags == {"expert": [(context, "training")], "held out": [(context, "evaluation")]}


def test_data_that_are_learned_from_and_held_out_are_one_input(world: World) -> None:
    [both] = world.run("second").inputs.dataset_inputs
    assert [tag.value for tag in both.tags] == ["training, evaluation"]


def test_a_data_set_that_mlflow_refuses_is_only_a_warning(world: World) -> None:
    report = world.runs["first"].report
    assert report is not None
    assert "the data sets were not recorded" in report


def test_a_missing_artifact_is_reported_and_nothing_else(world: World) -> None:
    report = world.runs["first"].report
    assert report is not None
    assert report.startswith(f"MLflow: artifact {world.folder}/no such file was not stored")
    assert "metric values" not in report
    assert world.runs["second"].report is None
    assert world.runs["first"].warnings == []  # known after the last log_metrics: only in the report


def test_two_first_runs_at_once_share_one_experiment(world: World) -> None:
    first, second = world.run("first"), world.run("second")
    assert first.info.experiment_id == second.info.experiment_id
    assert first.info.run_id != second.info.run_id
    assert second.info.run_name == "second"
    assert second.info.status == "FAILED"


def test_resume_goes_on_with_the_same_run(world: World) -> None:
    resumed, first = world.runs["resumed"], world.run("first")
    assert resumed.run_id == first.info.run_id
    assert resumed.report is None
    assert resumed.warnings == []
    assert first.info.status == "KILLED"
    assert first.data.metrics[LOSS] == 0.01
    assert first.data.params["added"] == "new"
    overrides = {name: value for name, value in first.data.tags.items() if name.startswith("override.")}
    assert overrides == {"override.algorithm.lr": "0.1"}


@pytest.mark.slow
def test_trouble_of_every_kind_side_by_side(world: World, tmp_path: Path) -> None:
    """Killed trainers, a killed child, unusable stores: started together, because each needs seconds."""
    trainers = [start_dying_trainer(world, tmp_path, forks) for forks in ("0", "1")]
    (tmp_path / "file").write_text("")
    unusable = {
        "file/mlflow.db cannot be written ([Errno 17] File exists": f"sqlite:///{tmp_path}/file/mlflow.db",
        "broken.db cannot be written (file is not a database)": f"sqlite:///{broken_database(tmp_path)}",
        "nonsense": "nonsense://nowhere",
    }
    failing = [
        failing_tracker(tmp_path / f"run{i}", replace(settings_of(world.location), tracking_uri=uri))
        for i, uri in enumerate(unusable.values())
    ]
    warnings: list[str] = []
    victim = MLflowTracker(settings_of(world.location, flush_interval_s=60.0), tmp_path, warnings.append)
    victim.start()

    check_trainers(world, trainers)
    for (tracker, said), reason in zip(failing, unusable, strict=True):
        check_failing(tracker, said, reason)
    check_killed_child(victim, warnings)


def start_dying_trainer(world: World, tmp_path: Path, forks: str) -> subprocess.Popen[str]:
    assert world.location.artifact_location is not None
    arguments = [world.location.tracking_uri, world.location.artifact_location, str(tmp_path / forks), forks]
    command = [sys.executable, "-c", DYING_TRAINER, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def check_trainers(world: World, trainers: list[subprocess.Popen[str]]) -> None:
    """SIGKILL of the trainer: what it logged is flushed, the run is KILLED; also if a fork holds the pipe."""
    answers = [read_answer(trainer) for trainer in trainers]
    for trainer in trainers:
        trainer.kill()
        trainer.wait()
    try:
        for run_id, _ in answers:
            wait_until(lambda run_id=run_id: world.client.get_run(run_id).info.status != "RUNNING")
            run = world.client.get_run(run_id)
            assert run.info.status == "KILLED"
            assert run.data.metrics == {"loss": 0.5}
    finally:
        os.kill(answers[1][1], signal.SIGKILL)


def read_answer(trainer: subprocess.Popen[str]) -> tuple[str, int]:
    """Run id and pid of the fork (0: none) of a dying trainer."""
    assert trainer.stdout is not None
    run_id, bystander = trainer.stdout.readline().split()
    trainer.stdout.close()
    return run_id, int(bystander)


def broken_database(tmp_path: Path) -> Path:
    path = tmp_path / "broken.db"
    path.write_bytes(b"this is no database" * 100)
    return path


def failing_tracker(run_dir: Path, settings: MLflowSettings) -> tuple[MLflowTracker, list[str]]:
    warnings: list[str] = []
    tracker = MLflowTracker(settings, run_dir, warnings.append)
    tracker.start()
    return tracker, warnings


def check_failing(tracker: MLflowTracker, warnings: list[str], reason: str) -> None:
    assert tracker.run_id(WAIT_S) is None
    wait_until(lambda: tracker._is_over)
    for step in range(5):
        tracker.log_metrics(step, {"loss": 1.0})
    report = tracker.finish("FINISHED", WAIT_S)
    assert len(warnings) == 1
    assert warnings[0].startswith("MLflow: ")
    assert reason.lower() in warnings[0].lower()
    assert report is not None
    assert "5 of 5 metric values were not written" in report


def check_killed_child(tracker: MLflowTracker, warnings: list[str]) -> None:
    run_id = tracker.run_id(WAIT_S)
    assert run_id is not None
    assert tracker._process is not None
    assert os.getsid(tracker._process.pid) == tracker._process.pid  # Ctrl-C does not reach it
    for name in (signal.SIGINT, signal.SIGTERM):
        os.kill(tracker._process.pid, name)  # ignored
    tracker.log_metrics(1, {"loss": 1.0, "entropy": 0.5})
    os.kill(tracker._process.pid, signal.SIGKILL)
    wait_until(lambda: tracker._is_over)
    for step in range(2, 12):
        tracker.log_metrics(step, {"loss": 1.0, "entropy": 0.5})
    assert len(warnings) == 1
    assert "its process ended with exit code -9; training continues" in warnings[0]
    report = tracker.finish("FINISHED", WAIT_S)
    assert report is not None
    assert "22 of 22 metric values were not written; the run does not have a final status" in report


def test_a_child_that_stands_still_never_blocks_the_trainer(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_tracker, "MAX_WAITING_MESSAGES", 20)
    warnings: list[str] = []
    tracker = MLflowTracker(settings_of(world.location), tmp_path, warnings.append)
    tracker.start()
    run_id = tracker.run_id(WAIT_S)
    assert run_id is not None
    assert tracker._process is not None
    os.kill(tracker._process.pid, signal.SIGSTOP)
    metrics = {f"filler/{'x' * 200}/{i}": float(i) for i in range(40)}
    started = time.monotonic()
    for step in range(100):
        tracker.log_metrics(step, metrics)
        time.sleep(0.001)
    assert time.monotonic() - started < 5.0
    assert tracker.finish("FINISHED", timeout_s=0.2) is not None  # goes on in the background
    os.kill(tracker._process.pid, signal.SIGCONT)
    report = tracker.finish("FINISHED", WAIT_S)
    assert len(warnings) == 1
    assert "is too slow" in warnings[0]
    assert report is not None
    assert "of 4000 metric values were not written" in report
    assert world.client.get_run(run_id).info.status == "FINISHED"


def test_a_child_that_cannot_start_is_only_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    tracker, warnings = failing_tracker(tmp_path, MLflowSettings("sqlite:////x.db", None, "e"))
    check_failing(tracker, warnings, "could not be started")


def test_a_tracker_that_was_never_started_has_nothing_to_report(tmp_path: Path) -> None:
    assert MLflowTracker(MLflowSettings("sqlite:////x.db", None, "e"), tmp_path).finish() is None


def test_batches_keep_order_within_both_limits() -> None:
    sizes = [1] * 150 + [400_000] * 5
    batches = list(mlflow_writer._batches(sizes, "params", lambda size: size))
    assert [size for batch in batches for size in batch] == sizes
    assert max(map(len, batches)) == 100
    assert max(map(sum, batches)) < mlflow_writer.MAX_BATCH_BYTES


def test_a_run_that_no_longer_exists_is_followed_by_a_new_one(tmp_path: Path) -> None:
    location = resolve_store(None, None, tmp_path, {})
    settings = settings_of(location, run_id="0" * 32, run_name="x" * 300, params={"seed": "1"})
    warnings: list[str] = []
    writer = mlflow_writer.RunWriter(vars(settings), lambda num_metrics: None, warnings.append)
    assert warnings == [f"starting a new run, because run {'0' * 32} no longer exists in the store"]
    run = writer._client.get_run(writer.run_id)
    assert (run.info.status, run.data.params) == ("RUNNING", {"seed": "1"})
    assert run.info.run_name == "x" * 247 + "..."  # the longest that every database of MLflow stores
    writer._client._tracking_client.store._dispose_engine()


def test_what_the_store_does_not_take_waits_for_the_next_flush(tmp_path: Path) -> None:
    location = resolve_store(None, None, tmp_path, {})
    written: list[int] = []
    settings = {**vars(MLflowSettings(location.tracking_uri, location.artifact_location, "e"))}
    writer = mlflow_writer.RunWriter(settings, written.append, warn=pytest.fail)
    log_batch, failures = writer._client.log_batch, [MlflowException("database is locked")]

    def sometimes_failing(*args: object, **kwargs: object) -> object:
        if failures:
            raise failures.pop()
        return log_batch(*args, **kwargs)  # type: ignore[arg-type]

    writer._client.log_batch = sometimes_failing  # type: ignore[assignment, method-assign]
    for step in range(1500):
        writer.add_metrics(step, 1.7e9, {"loss": float(step)})
    assert not writer.flush()
    assert writer.last_error.startswith("MlflowException: database is locked: another program keeps it locked")
    assert written == []
    assert writer.flush()
    assert written == [1000, 500]
    assert len(writer._client.get_metric_history(writer.run_id, "loss")) == 1500
    writer._client._tracking_client.store._dispose_engine()
