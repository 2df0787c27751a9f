"""Whole sweeps on the command line: trials, failures, MLflow, a kill, mistakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from runner.locks import held, owner_of
from runner.sweep.trials import SweepFolder
from tests.conftest import QUICK, WAIT_S, Run, progress_of, result_of, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]  # Ray Tune warns about its own future

SWEEP = ("-m", "+experiment=ppo_cartpole", *QUICK[:-1], "tracking.display=plain", "sweep.name=s")
FAULTY = ("env.env=null", "env._target_=tests.support.environments.Faulty")


def trials_of(folder: Path) -> dict[int, dict[str, Any]]:
    """The last line of each trial."""
    lines = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    return {line["number"]: line for line in lines}


@pytest.mark.slow
def test_failures_the_same_command_again_and_mlflow(run_main: Run, tmp_path: Path) -> None:
    faults = ["{fault:none}", "{fault:raise_in_init}", f"{{fault:raise_in_step,once_file:{tmp_path / 'once'}}}"]
    (tmp_path / "configs").mkdir()
    fixed = [text for text in (*SWEEP[1:], *FAULTY, "stop.training_iteration=2") if not text.startswith("sweep.")]
    command = (*SWEEP, *FAULTY, f"env.env_config={','.join(faults)}", "stop.training_iteration=2")
    command = (*command, "--config-dir", "configs")
    first = run_main(*command)
    folder = tmp_path / "outputs" / "ppo_cartpole" / "sweeps" / "s"
    described = json.loads((folder / "sweep.json").read_text())
    assert described["arguments"] == [*fixed, f"--config-dir={tmp_path / 'configs'}"]
    assert first.code == 1, first.err
    assert [trial["status"] for _, trial in sorted(trials_of(folder).items())] == ["finished", "failed", "failed"]
    assert "no display to draw on" in first.out
    assert "the arm has left its rail" in first.out
    assert "1 finished, 2 failed" in first.out
    assert result_of(folder / "1")["status"] == "failed"
    before = (folder / "0" / "progress.jsonl").stat().st_mtime_ns
    ids = {number: json.loads((folder / number / "mlflow_run.json").read_text())["run_id"] for number in "02"}

    second = run_main(*command)
    assert second.code == 1, second.err
    assert [trial["status"] for _, trial in sorted(trials_of(folder).items())] == ["finished", "failed", "finished"]
    assert trials_of(folder)[1]["num_failures"] == 2
    assert (folder / "0" / "progress.jsonl").stat().st_mtime_ns == before
    assert [line["training_iteration"] for line in progress_of(folder / "2")] == [1, 2]
    check_mlflow(tmp_path, folder, ids)


def check_mlflow(tmp_path: Path, folder: Path, ids: dict[str, str]) -> None:
    """One parent, a child for each trial; a trial that is tried again goes on with its run."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'outputs' / 'mlflow.db'}")
    (experiment,) = [own for own in client.search_experiments() if own.name == "ppo_cartpole"]
    runs = {run.info.run_id: run for run in client.search_runs([experiment.experiment_id])}
    parent = runs.pop(json.loads((folder / "mlflow_run.json").read_text())["run_id"])
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {parent.info.run_id}
    by_trial = {run.data.tags["sweep.trial"]: run for run in runs.values()}
    assert len(runs) == 3
    assert {number: by_trial[number].info.run_id for number in "02"} == ids
    assert [by_trial[number].info.status for number in "012"] == ["FINISHED", "FAILED", "FINISHED"]
    assert parent.info.status == "FINISHED"
    assert parent.data.params["best.trial"] in ("0", "2")
    metric = "env_runners/episode_return_mean"
    assert parent.data.metrics[metric] == by_trial[parent.data.params["best.trial"]].data.metrics[metric] == 8.0
    steps = [point.step for point in client.get_metric_history(by_trial["0"].info.run_id, metric)]
    assert steps == [line["num_env_steps_sampled_lifetime"] for line in progress_of(folder / "0")]


@pytest.mark.slow
def test_a_trial_that_fails_is_tried_again(start_main: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    once = "{fault:raise_in_step,once_file:once}"  # relative to where the command was typed
    settings = ("tracking.mlflow=false", "sweep.max_failures=1", "stop.training_iteration=2")
    sweep = start_main(*SWEEP, *FAULTY, f"env.env_config={once},{{fault:raise_in_step}}", *settings)
    out, err = sweep.communicate(timeout=WAIT_S)
    folder = tmp_path / "outputs" / "ppo_cartpole" / "sweeps" / "s"
    assert sweep.returncode == 1
    assert "Traceback" not in err
    assert "1 finished, 1 failed" in out
    assert [trials_of(folder)[number]["status"] for number in (0, 1)] == ["finished", "failed"]
    assert "the arm has left its rail" in result_of(folder / "1")["stop_reason"]
    assert (folder / "1" / "runner.log").exists()
    assert trials_of(folder)[1]["num_failures"] == 2
    assert (tmp_path / "once").exists()


@pytest.mark.slow
def test_a_killed_sweep_goes_on(start_main: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    command = (*SWEEP, "tracking.mlflow=false", "seed=range(2)", "algorithm.lr=1e-3,2e-3")
    settings = ("checkpoint.every_iterations=5", "sweep.max_concurrent_trials=2", "stop.training_iteration=60")
    folder = tmp_path / "outputs" / "ppo_cartpole" / "sweeps" / "s"
    first = start_main(*command, *settings)
    wait_until(lambda: any((folder / number / "checkpoints").exists() for number in "01"))
    assert [trial.status for trial in SweepFolder.open(folder).trials[:1]] == ["running"]
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    assert owner_of(folder) is None
    killed = trials_of(folder)
    assert {trial["status"] for trial in killed.values()} <= {"waiting", "running", "finished"}
    assert len(killed) < 4 or any(trial["status"] != "finished" for trial in killed.values())
    second = start_main(*command, *settings)
    out, err = second.communicate(timeout=WAIT_S)
    assert second.returncode == 0, err
    assert "from an earlier start" in out
    trials = trials_of(folder)
    assert [trials[number]["status"] for number in range(4)] == ["finished"] * 4
    assert len({json.dumps(trial["combination"]) for trial in trials.values()}) == 4
    for number in "0123":
        assert [line["training_iteration"] for line in progress_of(folder / number)] == list(range(1, 61))
    alone = start_main(
        *SWEEP[1:-1], *settings[::2], "seed=1", "algorithm.lr=1e-3", "hydra.run.dir=alone", "tracking=none"
    )
    alone.communicate(timeout=WAIT_S)
    number = next(n for n, own in trials.items() if own["combination"] == {"algorithm.lr": "0.001", "seed": "1"})
    assert losses_of(tmp_path / "alone") == losses_of(folder / str(number))  # as if it had never been killed


@pytest.mark.slow
def test_sigterm_ends_with_checkpoints_and_ctrl_c_at_once(
    start_main: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    command = (*SWEEP, "seed=1,2", "sweep.max_concurrent_trials=1", "stop.training_iteration=400")
    folder = tmp_path / "outputs" / "ppo_cartpole" / "sweeps" / "s"
    first = start_main(*command, "tracking.mlflow=false")
    wait_until(lambda: (folder / "0" / "progress.jsonl").exists())
    first.send_signal(signal.SIGTERM)
    out, err = first.communicate(timeout=WAIT_S)
    assert first.returncode == 130, err
    assert "1 interrupted" in out
    assert out.endswith("\ninterrupted: run the same command again to continue this sweep\n")
    reached = progress_of(folder / "0")[-1]["training_iteration"]
    assert (folder / "0" / "checkpoints" / f"iteration_{reached:06d}").exists()
    assert result_of(folder / "0")["status"] == "interrupted"
    second = start_main(*command, "tracking.mlflow=false")
    assert second.stdout is not None
    assert second.stdout.readline() == "sweep\n"
    wait_until(lambda: starts_ray(second.pid))  # and nothing runs yet
    second.send_signal(signal.SIGINT)
    _, err = second.communicate(timeout=WAIT_S)
    assert second.returncode == 130, err
    assert "Traceback" not in err
    assert trials_of(folder)[0]["status"] == "interrupted"
    assert progress_of(folder / "0")[-1]["training_iteration"] >= reached


@pytest.mark.slow
def test_a_reader_that_leaves_ends_the_sweep(start_main: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    sweep = start_main(*SWEEP, "seed=1,2", "tracking.mlflow=false", "stop.training_iteration=1")
    assert sweep.stdout is not None
    sweep.stdout.close()
    assert sweep.wait(timeout=WAIT_S) == 130
    folder = tmp_path / "outputs" / "ppo_cartpole" / "sweeps" / "s"
    assert folder.is_dir()
    assert not [file for file in folder.rglob("result.json") if '"finished"' in file.read_text()]


def starts_ray(pid: int) -> bool:
    """Whether a process has started Ray's first server; trials come seconds later."""
    with suppress(FileNotFoundError):  # a thread or a child has just ended
        lists = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children")]
        return any("gcs_server" in Path(f"/proc/{child}/cmdline").read_text() for child in " ".join(lists).split())
    return False


def losses_of(run_dir: Path) -> list[float]:
    return [line["learners/default_policy/total_loss"] for line in progress_of(run_dir)]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.lr=1e-3"], "needs an override with several values"),
        (["algorithm.lr=interval(1e-4,1e-3)"], "a grid cannot try every number"),
        (["algorithm.lr=1e-3,fast"], "algorithm.lr"),
        (["seed=1,2", "sweep.metrik=x"], "unknown key sweep.metrik"),
        (["seed=1,2", "sweep.metric=env_runners/episode_return_men"], "this run does not produce the metric"),
        (["seed=1,2", "sweep.seed=1,2"], "is the same for all trials"),
        (["seed=1,2", "hydra.run.dir=x"], "hydra.run.dir has no effect in a sweep"),
        (["sweep=asha", "algorithm.lr=interval(1e-4,1e-3)", "sweep.max_t=5", "sweep.grace_period=9"], "grace_period"),
        (
            ["seed=1", "stop.num_env_steps_sampled_lifetime=10,20", "sweep.scheduler=asha"],
            "must be the same for all trials",
        ),
        (["seed=1,2", "learners.num_learners=64", "learners.num_gpus_per_learner=1"], "GPU 64"),
        (["seed=1,2", "learners.num_gpus_per_learner=64"], "is at most 1: a learner uses one GPU"),
        (["seed=1,2", "algorithm.lr=tag(lag,interval(1,2))"], "unknown tag lag"),
    ],
)
def test_mistakes_start_nothing(run_main: Run, tmp_path: Path, overrides: list[str], message: str) -> None:
    outcome = run_main(*SWEEP, *overrides)
    assert outcome.code == 2
    assert message in outcome.err
    assert not list(tmp_path.rglob("progress.jsonl"))


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.lr=1e-3"],
        ["algorithm.lr=interval(1e-4,1e-3)"],
        ["algorithm.lr=interval(1e-3,1e-4)", "sweep=random"],
        ["algorithm.lr=tag(log,interval(0,1))", "sweep=tpe"],
        ["seed=1,1"],
        ["seed=1,2", "tracking.mlflow=true,false"],
        ["algorithm.lr=1e-3,2e-3", "sweep=random", "sweep.num_samples=3"],
        ["algorithm.lr=1e-3,2e-3", "sweep=pb2"],
    ],
)
def test_validate_finds_the_mistakes_of_a_sweep(run_main: Run, overrides: list[str]) -> None:
    validated = run_main("validate", *SWEEP, *overrides)
    assert validated.code == 2
    assert validated.err == run_main(*SWEEP, *overrides).err


def test_validate_checks_the_options_of_a_glob(run_main: Run) -> None:
    outcome = run_main("validate", "-m", "experiment=glob(ppo_c*,exclude=*_*_*)")
    assert outcome.out.splitlines()[0] == "ppo_cartpole: no problems in 2 configurations that cover the sweep"


@pytest.mark.slow
def test_the_folder_of_another_sweep(run_main: Run, tmp_path: Path) -> None:
    folder = tmp_path / "outputs" / "ppo_cartpole" / "sweeps" / "s"
    quick = (*SWEEP, "tracking.mlflow=false", "stop.training_iteration=1")
    assert run_main(*quick, "seed=1,2").code == 0
    with held(folder):
        same = run_main(*quick, "seed=1,2")
    assert same.code == 2
    assert "the sweep's folder belongs to another process" in same.err
    refused = run_main(*quick, "seed=1,2,3")
    assert refused.code == 2
    assert '+ seed: ["1", "2", "3"]' in refused.err
    assert sorted(trials_of(folder)) == [0, 1]
    assert run_main(*quick, "seed=1,2,3", "sweep.on_change=extend").code == 0
    assert sorted(trials_of(folder)) == [0, 1, 2]
    assert trials_of(folder)[2]["combination"] == {"seed": "3"}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    outcome = run_main(*quick, "seed=1,2", f"hydra.sweep.dir={tmp_path / 'mine'}")
    assert outcome.code == 2
    assert "the folder holds files that are not a sweep" in outcome.err
    assert "got           thesis.tex" in outcome.err
