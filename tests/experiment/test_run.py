"""A run from its command line to its end: files, evaluation, stop criteria, display, tracking, exit codes."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.compat.hydra_loader import Loader
from runner.config.errors import Problem, RunFailure
from runner.experiment import run as training_run
from runner.experiment import run_experiment
from runner.experiment.mlflow_runs import continued_run
from runner.interrupts import Interrupted
from runner.tracking.known_run import RUN_FILE, write_known_run
from runner.tracking.mlflow_tracker import MLflowTracker
from tests.conftest import QUICK, MakeRun, Outcome, Run, checkpoints_of, progress_of, result_of
from tests.support.problems import shown_problems

START = ("+experiment=ppo_cartpole", *QUICK)
TRAIN = (*START, "hydra.run.dir=run")
# Metrics that every line has.
PROMISED = (
    "training_iteration",
    "num_env_steps_sampled_lifetime",
    "time_total_s",
    "env_runners/episode_return_mean",
    "env_runners/episode_len_mean",
    "env_runners/num_episodes",
    "learners/default_policy/policy_loss",
    "learners/default_policy/vf_loss",
    "learners/default_policy/entropy",
    "learners/default_policy/mean_kl_loss",
    "timers/env_runner_sampling",
    "timers/learner_update",
)
EVALUATION_RETURN = "evaluation/env_runners/episode_return_mean"


def test_files_of_a_run_dir(run_main: Run, tmp_path: Path) -> None:
    outcome = run_main(*TRAIN, "stop.training_iteration=3", "checkpoint.every_iterations=2")
    assert (outcome.code, outcome.err) == (0, "")
    run_dir = tmp_path / "run"
    lines = progress_of(run_dir)
    assert [line["training_iteration"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert set(PROMISED) <= set(line)
        assert all(isinstance(line[name], (int, float)) for name in PROMISED)
    steps = [line["num_env_steps_sampled_lifetime"] for line in lines]
    assert steps == sorted(set(steps))
    result = result_of(run_dir)
    assert {name: result[name] for name in lines[-1]} == lines[-1]
    assert (result["status"], result["stop_reason"]) == ("finished", "reached 3 iterations")
    assert result["mlflow_run_id"] is None
    assert result["checkpoint"] == str(run_dir / "checkpoints" / "iteration_000003")
    assert checkpoints_of(run_dir) == ["iteration_000002", "iteration_000003"]
    assert (run_dir / "runner.log").exists()
    assert (run_dir / ".hydra" / "config.yaml").exists()
    assert "stop.training_iteration=3" in (run_dir / ".hydra" / "overrides.yaml").read_text()


def test_a_checkpoint_has_no_other_files(run_main: Run, tmp_path: Path) -> None:
    run_main(*TRAIN, "stop.training_iteration=1", "connectors=mean_std_filter")
    files = [path for path in (tmp_path / "run" / "checkpoints").rglob("*") if path.is_file()]
    assert len(files) > 4
    assert {path.suffix for path in files} == {".json", ".safetensors"}
    for path in files:
        if path.suffix == ".json":
            json.loads(path.read_text())


def test_what_a_run_prints(run_main: Run, tmp_path: Path) -> None:
    outcome = run_main(*TRAIN, "stop.training_iteration=2", "seed=5")
    lines = outcome.out.splitlines()
    assert lines[0] == "ppo_cartpole"
    assert "  environment  CartPole-v1, 4 copies in this process" in lines
    assert "  algorithm    PPO, seed 5" in lines
    assert f"  run dir      {tmp_path / 'run'}" in lines
    header = next(number for number, line in enumerate(lines) if line.split()[:2] == ["iter", "env"])
    assert [line.split()[0] for line in lines[header + 1 : header + 3]] == ["1", "2"]  # first and last iteration
    assert "finished: reached 2 iterations" in lines
    assert any("runner resume " in line for line in lines)
    assert "\x1b" not in outcome.out


def test_a_configuration_is_composed_once(run_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A composition takes a tenth of a second."""
    composed: list[int] = []
    compose = Loader._compose_config_from_defaults_list

    def counted(self: Loader, defaults: Any, repo: Any) -> Any:
        composed.append(len(defaults))
        return compose(self, defaults, repo)

    monkeypatch.setattr(Loader, "_compose_config_from_defaults_list", counted)
    assert run_main(*TRAIN, "stop.training_iteration=1").code == 0
    assert len(composed) == 1


def test_display_none_prints_nothing(run_main: Run) -> None:
    assert run_main(*TRAIN, "stop.training_iteration=1", "tracking.display=none") == Outcome(0, "", "")


# -- stop ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "metric", "bound", "reason"),
    [
        ("training_iteration=2", "training_iteration", 2, "reached 2 iterations"),
        ("num_env_steps_sampled_lifetime=1e3", "num_env_steps_sampled_lifetime", 1000, "reached 1,000 env steps"),
        ("env_runners.episode_return_mean=15", "env_runners/episode_return_mean", 15, "mean return {:g} >= 15"),
        (
            *("learners.default_policy.num_minibatch_updates=1", "learners/default_policy/num_minibatch_updates", 1),
            "gradient steps per iteration (default_policy) {:g} >= 1",
        ),
        ("time_total_s=0.01", "time_total_s", 0.01, "reached 0.01 seconds of training"),
    ],
)
def test_any_metric_stops_a_run(
    run_main: Run, tmp_path: Path, stop: str, metric: str, bound: float, reason: str
) -> None:
    outcome = run_main(*TRAIN, "env_runners.metrics_num_episodes_for_smoothing=1", f"stop.{stop}")
    assert outcome.code == 0, outcome.err
    *before, last = progress_of(tmp_path / "run")
    assert last[metric] >= bound
    assert all(line[metric] is None or line[metric] < bound for line in before)
    assert result_of(tmp_path / "run")["stop_reason"] == reason.format(last[metric])


def test_the_metric_of_an_evaluation_stops_a_run(run_main: Run, tmp_path: Path) -> None:
    outcome = run_main(
        *TRAIN,
        "evaluation.evaluation_interval=2",
        "evaluation.evaluation_duration=3",
        "stop.evaluation.env_runners.episode_return_mean=1",
    )
    assert outcome.code == 0, outcome.err
    assert [line["training_iteration"] for line in progress_of(tmp_path / "run")] == [1, 2]
    assert result_of(tmp_path / "run")["stop_reason"].startswith("mean evaluation return ")


def test_a_metric_that_does_not_come_in_every_iteration_stops_no_run(run_main: Run, tmp_path: Path) -> None:
    # The first iteration finishes no episode, so there is no mean return yet; the run goes on.
    outcome = run_main(
        *TRAIN,
        "env._target_=tests.support.environments.Faulty",
        "env.env=null",
        "env.env_config={episode_len: 100}",
        "env_runners.metrics_num_episodes_for_smoothing=1",
        "stop.env_runners.episode_return_mean=100",
    )
    assert outcome.code == 0, outcome.err
    lines = progress_of(tmp_path / "run")
    assert [line["env_runners/episode_return_mean"] for line in lines] == [None, 100.0]


# -- evaluation ----------------------------------------------------------------------------------------------------


def test_evaluation_at_intervals_and_at_the_end(run_main: Run, tmp_path: Path) -> None:
    outcome = run_main(
        *TRAIN, "stop.training_iteration=5", "evaluation.evaluation_interval=2", "evaluation.evaluation_duration=7"
    )
    assert outcome.code == 0, outcome.err
    lines = progress_of(tmp_path / "run")
    evaluated = [line["training_iteration"] for line in lines if EVALUATION_RETURN in line]
    assert evaluated == [2, 4, 5]
    assert {line.get("evaluation/env_runners/num_episodes") for line in lines} == {None, 7}
    assert lines[-1]["timers/evaluation"] > 0
    assert result_of(tmp_path / "run")[EVALUATION_RETURN] == lines[-1][EVALUATION_RETURN]


# -- checkpoints ---------------------------------------------------------------------------------------------------


def test_checkpoints_of_a_run(run_main: Run, tmp_path: Path) -> None:
    outcome = run_main(
        *TRAIN,
        "stop.training_iteration=6",
        "checkpoint.every_iterations=1",
        "checkpoint.keep_last=1",
        "checkpoint.metric=learners/default_policy/vf_loss",
        "checkpoint.mode=min",
    )
    assert outcome.code == 0, outcome.err
    losses = {
        line["training_iteration"]: line["learners/default_policy/vf_loss"] for line in progress_of(tmp_path / "run")
    }
    best = f"iteration_{min(losses, key=losses.__getitem__):06d}"
    assert checkpoints_of(tmp_path / "run") == sorted({best, "iteration_000006"})
    assert Path(result_of(tmp_path / "run")["best_checkpoint"]).name == best


def test_only_at_the_end(run_main: Run, tmp_path: Path) -> None:
    assert run_main(*TRAIN, "stop.training_iteration=2", "checkpoint.every_iterations=null").code == 0
    assert checkpoints_of(tmp_path / "run") == ["iteration_000002"]


# -- MLflow --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # SQLAlchemy deprecates what MLflow uses
def test_mlflow_has_the_run_and_a_resume_goes_on_with_it(run_main: Run, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    train = [item for item in TRAIN if item != "tracking=none"]
    run_dir = tmp_path / "outputs" / "run"
    started_s = time.time()
    outcome = run_main(*train, f"hydra.run.dir={run_dir}", "stop.training_iteration=2", "algorithm.lr=7e-4")
    assert outcome.code == 0, outcome.err
    run_id = result_of(run_dir)["mlflow_run_id"]
    assert run_id is not None
    database = tmp_path / "outputs" / "mlflow.db"
    assert f"sqlite:///{database}" in outcome.out
    elsewhere = tmp_path / "elsewhere" / "run"
    assert run_main("resume", str(run_dir), f"hydra.run.dir={elsewhere}", "stop.training_iteration=3").code == 0
    assert result_of(elsewhere)["mlflow_run_id"] == run_id

    client = MlflowClient(f"sqlite:///{database}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    (run,) = client.search_runs(experiments)
    assert run.info.run_id == run_id
    assert run.info.status == "FINISHED"
    written = (run_dir / ".hydra" / "config.yaml").stat().st_mtime  # by Hydra, as the run starts
    assert started_s < run.info.start_time / 1000 < written + 0.5
    assert run.data.params["algorithm.lr"] == "0.0007"
    assert run.data.params["seed"] == "0"
    assert "git_revision" in run.data.tags
    history = client.get_metric_history(run_id, "learners/default_policy/policy_loss")
    lines = progress_of(elsewhere)
    assert [(point.step, point.value) for point in history] == [
        (line["num_env_steps_sampled_lifetime"], line["learners/default_policy/policy_loss"]) for line in lines
    ]
    artifacts = {item.path for item in client.list_artifacts(run_id, "config")}
    assert {"config/config.yaml", "config/overrides.yaml", "config/environment.json"} <= artifacts
    assert "result.json" in {item.path for item in client.list_artifacts(run_id)}


def test_a_run_that_is_interrupted_before_training_has_not_failed(
    run_main: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses: list[str] = []

    def interrupted(*_: Any, **__: Any) -> None:
        raise Interrupted("SIGTERM")

    monkeypatch.setattr(run_experiment, "Trainer", interrupted)
    monkeypatch.setattr(MLflowTracker, "start", lambda tracker: None)
    monkeypatch.setattr(MLflowTracker, "finish", lambda tracker, status, timeout_s: statuses.append(status))
    train = [item for item in TRAIN if item != "tracking=none"]
    assert run_main(*train, "stop.training_iteration=1").code == 130
    assert statuses == ["KILLED"]


def test_after_a_second_interrupt_nothing_waits_for_mlflow(run_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def interrupted(trainer: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_experiment.Trainer, "train", interrupted)
    monkeypatch.setattr(MLflowTracker, "start", lambda tracker: None)
    monkeypatch.setattr(MLflowTracker, "run_id", lambda tracker, timeout_s: waits.append(timeout_s))
    monkeypatch.setattr(MLflowTracker, "finish", lambda tracker, status, timeout_s: waits.append(timeout_s))
    train = [item for item in TRAIN if item != "tracking=none"]
    assert run_main(*train, "stop.training_iteration=1").code == 130
    assert len(waits) == 2
    assert max(waits) <= 1.0


def test_a_copied_run_dir_gets_a_new_mlflow_run_and_a_moved_one_keeps_it(tmp_path: Path) -> None:
    run_dir, uri = tmp_path / "run", f"sqlite:///{tmp_path}/mlflow.db"
    run_dir.mkdir()
    (tmp_path / "mlflow.db").touch()
    write_known_run(run_dir / RUN_FILE, "old", uri)
    notes: list[str] = []
    assert continued_run(run_dir, notes.append)["run_id"] == "old"
    shutil.copytree(run_dir, tmp_path / "copy")
    assert notes == []
    assert continued_run(tmp_path / "copy", notes.append) == {"tracking_uri": uri}
    assert notes == [
        f"starting a new MLflow run: {tmp_path / 'copy'} is a copy of {run_dir}, to which the old one belongs"
    ]
    run_dir.rename(tmp_path / "moved")
    assert continued_run(tmp_path / "moved", notes.append)["run_id"] == "old"
    run_dir.mkdir()
    write_known_run(run_dir / RUN_FILE, "another run at the old path", uri)
    assert continued_run(tmp_path / "moved", notes.append)["run_id"] == "old"
    write_known_run(tmp_path / "copy" / RUN_FILE, "new", uri)
    assert continued_run(tmp_path / "copy", notes.append)["run_id"] == "new"
    assert len(notes) == 1


def test_a_database_that_was_moved_with_its_runs_is_found(tmp_path: Path) -> None:
    outputs, moved = tmp_path / "here" / "outputs", tmp_path / "there" / "outputs"
    run_dir = outputs / "ppo" / "run"
    run_dir.mkdir(parents=True)
    (outputs / "mlflow.db").touch()
    write_known_run(run_dir / RUN_FILE, "old", f"sqlite:///{outputs}/mlflow.db?timeout=5")
    outputs.parent.rename(moved.parent)
    notes: list[str] = []
    known = continued_run(moved / "ppo" / "run", notes.append)
    assert known == {"run_id": "old", "tracking_uri": f"sqlite:///{moved}/mlflow.db?timeout=5"}
    assert notes == []
    (moved / "mlflow.db").unlink()
    assert continued_run(moved / "ppo" / "run", notes.append) == {}
    assert notes == [f"starting a new MLflow run: the database of the old one, {outputs}/mlflow.db, does not exist"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # SQLAlchemy deprecates what MLflow uses
def test_the_resume_of_a_copied_run_dir_starts_a_new_mlflow_run(run_main: Run, tmp_path: Path) -> None:
    run_dir, copy = tmp_path / "outputs" / "run", tmp_path / "outputs" / "copy"
    train = [item for item in TRAIN if item != "tracking=none"]
    assert run_main(*train, f"hydra.run.dir={run_dir}", "stop.training_iteration=1").code == 0
    shutil.copytree(run_dir, copy, ignore=shutil.ignore_patterns(".lock"))
    outcome = run_main("resume", str(copy), "stop.training_iteration=2")
    assert outcome.code == 0, outcome.err
    assert f"starting a new MLflow run: {copy} is a copy of {run_dir}" in outcome.out
    new = result_of(copy)["mlflow_run_id"]
    assert new not in (None, result_of(run_dir)["mlflow_run_id"])
    outcome = run_main("resume", str(copy), "stop.training_iteration=3")
    assert "starting a new MLflow run" not in outcome.out
    assert result_of(copy)["mlflow_run_id"] == new


def test_a_failure_after_an_interrupt_is_recorded() -> None:
    """Ctrl-C may also kill simulators. Then a checkpoint does not wait for env runners."""

    def interrupted(trainer: Any) -> None:
        raise Interrupted

    ends: list[tuple[str, str]] = []
    records: Any = SimpleNamespace(
        last_result={"training_iteration": 1},
        add=lambda result: None,
        save_checkpoint=interrupted,
        finish=lambda *end: ends.append(end),
    )
    trainer: Any = SimpleNamespace(config=None, training_iteration=2, last_result={"training_iteration": 2})
    run = training_run.Run(trainer, records)
    with pytest.raises(RunFailure, match="the simulator died"), run.failure_recorded():
        raise RunFailure(Problem("the simulator died"))
    assert [status for status, _ in ends] == ["failed"]


# -- folders that cannot be used -----------------------------------------------------------------------------------


def test_a_run_dir_that_cannot_be_made(run_main: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    outcome = run_main(*TRAIN, "hydra.run.dir=file/run", "stop.training_iteration=1")
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    assert shown_problems(outcome.err, tmp_path) == [
        Problem("the run dir cannot be created: [Errno 20] Not a directory: 'TMP/file/run'")
    ]


def test_a_checkpoint_that_cannot_be_written(run_main: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").write_text("in the way")
    outcome = run_main(*TRAIN, "stop.training_iteration=2", "checkpoint.every_iterations=2")
    assert outcome.code == 1
    assert len(progress_of(tmp_path / "run")) == 2, "the metrics line is there"
    assert result_of(tmp_path / "run")["status"] == "failed"
    assert shown_problems(outcome.err, tmp_path) == [
        Problem(
            (
                "a file of the run cannot be written: NotADirectoryError: [Errno 20] Not a directory: "
                "'TMP/run/checkpoints/.iteration_000002.PID.tmp'"
            ),
            where="TMP/run",
        )
    ]


def test_a_full_disk_keeps_the_last_checkpoint(run_main: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runner.checkpoints import checkpoint, load_checkpoint

    written = 0
    write = checkpoint.write_file

    def full_after_the_first(path: Path, content: bytes) -> str:
        nonlocal written
        written += path.name == "manifest.json"
        if written > 1:
            raise OSError(28, "No space left on device", str(path))
        return write(path, content)

    monkeypatch.setattr(checkpoint, "write_file", full_after_the_first)
    outcome = run_main(*TRAIN, "stop.training_iteration=4", "checkpoint.every_iterations=2")
    assert outcome.code == 1
    assert "No space left on device" in outcome.err
    assert "Traceback" not in outcome.err
    assert checkpoints_of(tmp_path / "run") == ["iteration_000002"]
    load_checkpoint(tmp_path / "run" / "checkpoints" / "iteration_000002")
    result = result_of(tmp_path / "run")
    assert (result["status"], Path(result["checkpoint"]).name) == ("failed", "iteration_000002")


# -- evaluate ------------------------------------------------------------------------------------------------------


@pytest.fixture
def run_dir(copy_of_run: MakeRun) -> Path:
    """A finished run of two iterations."""
    return copy_of_run(*START, "stop.training_iteration=2", "connectors=mean_std_filter")


def test_evaluate_counts_exactly(run_main: Run, run_dir: Path) -> None:
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    outcome = run_main("evaluate", str(run_dir), "evaluation.evaluation_duration=12")
    assert (outcome.code, outcome.err) == (0, "")
    (record,) = [json.loads(line) for line in (run_dir / "evaluations.jsonl").read_text().splitlines()]
    assert record["num_episodes"] == 12
    assert ["num_episodes", "12"] in [line.split() for line in outcome.out.splitlines()]
    assert "evaluation.evaluation_duration  10 -> 12" in outcome.out
    assert {path: path.read_bytes() for path in before if path.name != "runner.log"} == {
        path: content for path, content in before.items() if path.name != "runner.log"
    }, "evaluate changes nothing else"
    assert run_main("evaluate", str(run_dir), "evaluation.evaluation_duration=12").code == 0
    again = [json.loads(line) for line in (run_dir / "evaluations.jsonl").read_text().splitlines()]
    assert again[1]["episode_return_mean"] == record["episode_return_mean"], "always the same seeds"


def test_evaluate_acts_with_the_checkpoints_policy(run_main: Run, run_dir: Path) -> None:
    from runner.experiment.trainer import Trainer

    run_main("evaluate", str(run_dir), "evaluation.evaluation_duration=9")
    (record,) = [json.loads(line) for line in (run_dir / "evaluations.jsonl").read_text().splitlines()]
    with Trainer.from_checkpoint(run_dir / "checkpoints" / "iteration_000002") as trainer:
        expected = trainer.evaluate(9)
    for name in ("episode_return_mean", "episode_len_max", "num_env_steps_sampled"):
        assert record[name] == expected[f"evaluation/env_runners/{name}"]


def test_evaluate_counts_env_steps(run_main: Run, run_dir: Path) -> None:
    unit = "evaluation.evaluation_duration_unit=env_steps"
    outcome = run_main("evaluate", str(run_dir), unit, "evaluation.evaluation_duration=500")
    assert (outcome.code, outcome.err) == (0, "")
    assert ["num_env_steps_sampled", "500"] in [line.split() for line in outcome.out.splitlines()]
    outcome = run_main("evaluate", str(run_dir), unit, "evaluation.evaluation_duration=8")
    assert outcome.code == 0, outcome.err
    assert ["episode_return_mean", "-"] in [line.split() for line in outcome.out.splitlines()]
    assert "  no episode ended within 8 env steps of 8 sub-environments" in outcome.out.splitlines()
    refused = run_main("evaluate", str(run_dir), "evaluation.evaluation_duration_unit=timesteps")
    assert refused.code == 2
    assert 'got           "timesteps"' in refused.err
    assert "did you mean  env_steps" in refused.err


def test_evaluate_takes_a_single_checkpoint_from_anywhere(run_main: Run, run_dir: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "iteration_000002"
    shutil.copytree(run_dir / "checkpoints" / "iteration_000002", moved)
    outcome = run_main("evaluate", str(moved), "evaluation.evaluation_duration=2", f"hydra.run.dir={tmp_path / 'new'}")
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "new" / "evaluations.jsonl").exists()


# -- parallel evaluation -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.ray
def test_evaluation_in_parallel_joins_its_iteration(run_main: Run, tmp_path: Path, ray_cluster: None) -> None:
    settings = [
        "stop.training_iteration=3",
        "evaluation.evaluation_interval=2",
        "evaluation.evaluation_duration=5",
        "evaluation.evaluation_num_env_runners=2",
    ]
    outcome = run_main(*TRAIN, *settings, "evaluation.evaluation_parallel_to_training=true")
    assert outcome.code == 0, outcome.err
    lines = progress_of(tmp_path / "run")
    assert [EVALUATION_RETURN in line for line in lines] == [False, True, True]
    assert [line.get("evaluation/env_runners/num_episodes") for line in lines] == [None, 5, 5]
    # The parallel one acts with the weights from before its iteration, the one at the end with the last.
    assert run_main(*TRAIN, *settings, "hydra.run.dir=serial").code == 0
    serial = progress_of(tmp_path / "serial")
    assert serial[2][EVALUATION_RETURN] == lines[2][EVALUATION_RETURN]
    for name in ("learners/default_policy/total_loss", "env_runners/episode_return_mean"):
        assert [line[name] for line in serial] == [line[name] for line in lines], "evaluation does not move training"


def test_a_stop_metric_that_nothing_produces_is_refused(run_main: Run, tmp_path: Path) -> None:
    outcome = run_main(*TRAIN, "stop.env_runners.episode_reward_mean=1")
    assert outcome.code == 2
    assert "did you mean  env_runners/episode_return_mean" in outcome.err
    assert not (tmp_path / "run").exists()


def test_one_line_per_metric_is_json(run_main: Run, tmp_path: Path) -> None:
    run_main(*TRAIN, "stop.training_iteration=1")
    text = (tmp_path / "run" / "progress.jsonl").read_text()
    record = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))

    def is_flat(value: Any) -> bool:
        return value is None or isinstance(value, (int, float))

    assert all(is_flat(value) for value in record.values())


def test_the_start_of_ray_is_told_before_it_is_waited_for(run_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from runner.config.errors import UserError
    from runner.experiment import ray_resources

    def connected(*_: object) -> None:
        raise UserError("no Ray here")

    monkeypatch.setattr(ray_resources, "connected", connected)
    outcome = run_main(*TRAIN, "env_runners.num_env_runners=2")
    assert (outcome.code, outcome.err) == (2, "no Ray here\n")
    assert outcome.out.splitlines()[0] == "starting 2 env runners ..."


def test_a_sweep_shows_the_overrides_as_they_were_typed(run_main: Run, tmp_path: Path) -> None:
    settings = ["stop.training_iteration=1", "seed=1,2", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    outcome = run_main("-m", "+experiment=ppo_cartpole", "hydra/sweeper=basic", *QUICK, *settings)
    assert outcome.code == 0, outcome.err
    launched = [line for line in outcome.out.splitlines() if "stop.training_iteration=1" in line]
    assert len(launched) == 2
    assert all(" stop.training_iteration=1" in line and "++" not in line for line in launched), launched


def test_a_log_that_cannot_be_written_is_told(run_main: Run, tmp_path: Path) -> None:
    (tmp_path / "run" / "runner.log").mkdir(parents=True)
    outcome = run_main(*TRAIN)
    assert outcome.code == 2
    assert outcome.err.startswith("the run dir cannot be created: [Errno 21] Is a directory: ")


@pytest.mark.slow
def test_launchers_of_hydra_run_in_other_processes(run_main: Run, tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    settings = ["seed=1,2", "stop.training_iteration=1", "hydra/sweeper=basic", "hydra/launcher=joblib"]
    outcome = run_main("-m", "+experiment=ppo_cartpole", *QUICK, *settings, "hydra.launcher.n_jobs=2")
    assert outcome.code == 0, outcome.err
    results = sorted((tmp_path / "outputs" / "ppo_cartpole" / "sweeps").glob("*/*/result.json"))
    assert [json.loads(file.read_text())["training_iteration"] for file in results] == [1, 1]


def test_each_sweep_of_hydra_has_its_own_folder(run_main: Run, tmp_path: Path) -> None:
    command = ["-m", "+experiment=ppo_cartpole", *QUICK, "stop.training_iteration=1", "seed=1", "hydra/sweeper=basic"]
    assert run_main(*command).code == 0
    time.sleep(1.1)  # folders are named by the second
    assert run_main(*command).code == 0
    assert len(list((tmp_path / "outputs" / "ppo_cartpole" / "sweeps").iterdir())) == 2


def test_a_launcher_needs_a_sweeper_of_hydra(run_main: Run) -> None:
    outcome = run_main("-m", "+experiment=ppo_cartpole", *QUICK, "seed=1,2", "hydra/launcher=joblib")
    assert outcome.code == 2
    assert "add hydra/sweeper=basic, or use sweep.max_concurrent_trials=N" in outcome.err


def test_a_plugin_that_is_not_installed(run_main: Run) -> None:
    outcome = run_main("-m", "+experiment=ppo_cartpole", *QUICK, "seed=1,2", "hydra/sweeper=nope")
    assert outcome.code == 2
    assert outcome.err.startswith("1 problem in the configuration\n\n1. unknown option nope of hydra/sweeper, ")
    assert "the package of this plugin is not installed" in outcome.err
    assert "override hydra/sweeper=nope" in outcome.err
