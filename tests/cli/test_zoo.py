"""`zoo verify` compares a repeated run with the stored one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import runner.zoo_runs
from runner.zoo_runs import Experiment, ZooRun, stored_runs
from tests.conftest import ROOT, WAIT_S, Run, progress_of, wait_until

NAME = "ppo_minigrid_empty"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ZooRun:
    """A finished run."""
    return Experiment.read(NAME).train(1, tmp_path_factory.mktemp("zoo") / "run", "--quiet")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes these the runs of the zoo."""
    folder = tmp_path / "zoo"
    folder.mkdir()
    monkeypatch.setattr(runner.zoo_runs, "zoo_dir", lambda: folder)

    def write(*runs: ZooRun) -> None:
        (folder / "runs.jsonl").write_text("".join(run.to_line() for run in runs))

    return write


def test_an_equal_run(run: ZooRun, store: Callable[..., None], run_main: Run) -> None:
    store(replace(run, seed=3, progress=""), replace(run, progress="0"), run)
    result = run_main("zoo", "verify", NAME, "--json")
    assert result.code == 0, result.err
    shown = json.loads(result.out)
    assert shown["verdict"].startswith("all lines of progress.jsonl are equal")
    assert shown["repeated"]["progress"] == run.progress == shown["stored"]["progress"]
    again = run_main("zoo", "verify", NAME)
    assert again.code == 2
    assert "has ended before" in again.err
    assert "delete the folder" in again.err


@pytest.mark.parametrize(
    ("changed", "code", "text"),
    [
        ({}, 3, "differs on the same kind of machine"),
        ({"cpu": "another"}, 0, "another machine or with other versions"),
        ({"versions": {"torch": "1.0"}}, 0, "another machine or with other versions"),
        ({"cpu": "another", "episode_return_mean": 2.0}, 3, "not within the range of the stored seeds"),
        ({"configuration": "another"}, 3, "has changed since"),
    ],
)
def test_a_run_that_differs(
    changed: dict[str, object],
    code: int,
    text: str,
    run: ZooRun,
    store: Callable[..., None],
    run_main: Run,
) -> None:
    stored = replace(run, progress="another", **changed)  # type: ignore[arg-type]
    store(stored, replace(stored, seed=2, episode_return_mean=stored.episode_return_mean + 1))
    result = run_main("zoo", "verify", NAME, "--seed", "1")
    assert result.code == code, result.err
    assert text in result.out + result.err


def test_an_interrupted_run_has_a_checkpoint(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    code = f"""from pathlib import Path
from runner.zoo_runs import Experiment
Experiment.read("ppo_lunarlander").train(0, Path({str(run_dir)!r}), "--quiet")
"""
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, start_new_session=True) as process:
        wait_until(lambda: (run_dir / "progress.jsonl").is_file() and progress_of(run_dir))
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(WAIT_S) != 0
    assert list(run_dir.glob("checkpoints/iteration_*"))


def test_unknown_runs(run: ZooRun, store: Callable[..., None], run_main: Run) -> None:
    store(run, replace(run, experiment="ppo_cartpole", progress=""))
    result = run_main("zoo", "verify", "ppo_cartpole")
    assert (result.code, NAME in result.err) == (2, True)
    for seed in ("0", "7"):
        assert "a run of ppo_minigrid_empty with this seed" in run_main("zoo", "verify", NAME, "--seed", seed).err


def test_the_newest_line_of_a_seed_counts(tmp_path: Path, run: ZooRun) -> None:
    (tmp_path / "runs.jsonl").write_text(replace(run, seconds=1.0).to_line() + run.to_line())
    assert stored_runs(tmp_path / "runs.jsonl") == {NAME: {1: run}}
