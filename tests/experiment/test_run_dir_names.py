"""Run dirs that nobody named: each of several runs that start in the same second has its own."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from runner import fit
from runner.config.compose import compose_experiment
from runner.config.errors import UserError
from runner.experiment.run_folder import claim_run_dir, make_free_folder
from runner.experiment.trainer import Trainer
from runner.locks import held
from tests.conftest import QUICK, WAIT_S, Run, Start

SHORT = ("+experiment=ppo_cartpole", *QUICK, "stop.training_iteration=1")
# The time of a run dir to the day, so that runs of a test always start "in the same moment".
SAME_MOMENT = "hydra.run.dir=runs/${now:%Y-%m-%d}"
NUM_PROCESSES = 12


def test_threads_that_ask_together_get_folders_of_their_own(tmp_path: Path) -> None:
    barrier, got = threading.Barrier(NUM_PROCESSES), []

    def ask() -> None:
        barrier.wait()
        got.append(make_free_folder(tmp_path / "12-00-00"))

    threads = [threading.Thread(target=ask) for _ in range(NUM_PROCESSES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = {path.name for path in got}
    assert names == {"12-00-00", *(f"12-00-00_{number}" for number in range(2, NUM_PROCESSES + 1))}


def test_only_a_name_with_the_time_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    named = compose_experiment([*SHORT, "hydra.run.dir=mine"])
    assert [claim_run_dir(named), claim_run_dir(named)] == [Path("mine"), Path("mine")]
    assert not Path("mine").exists()
    by_default, by_time = compose_experiment(list(SHORT)), compose_experiment([*SHORT, SAME_MOMENT])
    for composed in (by_default, by_time):
        first, second = claim_run_dir(composed), claim_run_dir(composed)
        assert first == Path(str(composed.run_dir))
        assert second == first.with_name(f"{first.name}_2")


def test_a_name_that_only_hydras_job_could_resolve_is_a_mistake() -> None:
    composed = compose_experiment([*SHORT, "hydra/sweeper=basic", "hydra.run.dir=${hydra:runtime.cwd}/x"])
    with pytest.raises(UserError, match=r"hydra\.run\.dir cannot be resolved"):
        claim_run_dir(composed)


def test_a_folder_that_cannot_be_made_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "run", tmp_path / "file" / "runs" / "run"):
        with pytest.raises(UserError, match="the run dir cannot be created"):
            make_free_folder(path)


@pytest.mark.slow
def test_runs_that_start_together_all_train(start_main: Start, tmp_path: Path) -> None:
    runs = [start_main(*SHORT, SAME_MOMENT, f"seed={seed}") for seed in range(3)]
    for run in runs:
        out, err = run.communicate(timeout=WAIT_S)
        assert run.returncode == 0, (out, err)
    folders = sorted((tmp_path / "runs").iterdir())
    assert len(folders) == 3
    assert all((folder / "result.json").is_file() for folder in folders)


def test_a_run_after_one_with_the_same_time_leaves_it_alone(run_main: Run, tmp_path: Path) -> None:
    assert run_main(*SHORT, SAME_MOMENT).code == run_main(*SHORT, SAME_MOMENT).code == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2
    named = (*SHORT, "hydra.run.dir=mine")
    assert [run_main(*named).code, run_main(*named).code] == [0, 2], "a folder that the user named is an error"


def test_module_only_and_fit_take_the_next_free_name(
    run_main: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_main(*SHORT, "hydra.run.dir=first").code == 0
    with monkeypatch.context() as patched:
        patched.setattr("runner.cli.resume._default_run_dir", lambda _: tmp_path / "day" / "second")
        for _ in range(2):
            assert run_main("resume", "first", "--module-only").code == 0
    assert sorted(path.name for path in (tmp_path / "day").iterdir()) == ["second", "second_2"]
    for _ in range(2):
        with Trainer.from_experiment("ppo_cartpole", [*SHORT[1:], SAME_MOMENT]) as trainer:
            fit(trainer)
    assert len(list((tmp_path / "runs").iterdir())) == 2


@pytest.mark.slow
def test_a_sweep_that_nobody_named_runs_beside_an_equal_one(run_main: Run, tmp_path: Path) -> None:
    sweep = (*SHORT, "-m", "seed=1,2")
    assert run_main(*sweep).code == 0
    (folder,) = (tmp_path / "outputs" / "ppo_cartpole" / "sweeps").iterdir()
    with held(folder):
        outcome = run_main(*sweep)
        assert (outcome.code, "another process runs this sweep in" in outcome.err) == (0, True), outcome.err
    assert (folder.with_name(f"{folder.name}_2") / "0" / "result.json").is_file()
    with held(folder):
        assert run_main(*sweep, f"hydra.sweep.dir={folder.parent / 'mine'}").code == 0
    with held(folder.parent / "mine"):
        assert run_main(*sweep, f"hydra.sweep.dir={folder.parent / 'mine'}").code == 2
