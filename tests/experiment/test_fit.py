"""`Trainer.fit`: the run of a trainer in Python is the one that the command line makes."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from runner import Trainer, fit
from runner.config.errors import UserError
from runner.plans import Result
from runner.plans.item_state import UnstorableItem
from tests.conftest import QUICK, Outcome, checkpoints_of, lines_of, progress_of, result_of

CARTPOLE = "ppo_cartpole"
THREE = (*QUICK, "stop.training_iteration=3", "tracking.display=none")


class _InterruptedTrainer(Trainer):
    """Somebody presses Ctrl-C in the second iteration."""

    def train(self) -> Result:
        result = super().train()
        if self.training_iteration == 2:
            signal.raise_signal(signal.SIGINT)
        return result


def test_a_fit_is_a_run_of_the_command_line(
    run_main: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome: Outcome = run_main(f"+experiment={CARTPOLE}", *THREE, "hydra.run.dir=typed")
    assert outcome.code == 0, outcome.err
    monkeypatch.chdir(tmp_path)
    with Trainer.from_experiment(CARTPOLE, [*THREE, "hydra.run.dir=fitted"]) as trainer:
        record = fit(trainer)
        assert trainer.evaluate(2)["evaluation/env_runners/num_episodes"] == 2
    typed, fitted = tmp_path / "typed", tmp_path / "fitted"
    assert lines_of(fitted) == lines_of(typed)
    assert checkpoints_of(fitted) == checkpoints_of(typed)
    assert (fitted / ".hydra" / "config.yaml").read_text() == (typed / ".hydra" / "config.yaml").read_text()
    assert (fitted / "runner.log").exists()
    assert result_of(fitted)["stop_reason"] == "reached 3 iterations"
    assert (record.path, record.status, record.experiment) == (fitted, "finished", CARTPOLE)
    assert record.checkpoint == str(fitted / "checkpoints" / "iteration_000003")
    assert list(record.columns["training_iteration"]) == [1, 2, 3]
    assert capsys.readouterr().out == ""


def test_a_fit_goes_to_the_folder_of_hydra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Trainer.from_experiment(CARTPOLE, [*QUICK, "stop.training_iteration=1", "tracking.display=plain"]) as trainer:
        record = fit(trainer)
    outputs, experiment, date, time = record.path.relative_to(tmp_path).parts
    assert (outputs, experiment) == ("outputs", CARTPOLE)
    assert (len(date), len(time)) == (len("2026-11-21"), len("10-02-11"))


def test_an_interrupted_fit_goes_on(tmp_path: Path) -> None:
    with Trainer.from_experiment(CARTPOLE, THREE) as trainer:
        fit(trainer, tmp_path / "straight")
    with _InterruptedTrainer.from_experiment(CARTPOLE, THREE) as trainer:
        interrupted = fit(trainer, tmp_path / "run")
        assert (interrupted.status, interrupted.stop_reason) == ("interrupted", "SIGINT after iteration 2")
        record = fit(trainer)
    assert record.path == tmp_path / "run"
    assert record.status == "finished"
    straight = lines_of(tmp_path / "straight")
    assert lines_of(record.path) == straight


class _UnsavedTrainer(_InterruptedTrainer):
    """An item of a custom class waits when somebody presses Ctrl-C."""

    def get_state(self) -> dict[str, Any]:
        if self.training_iteration == 2:
            raise UnstorableItem("a checkpoint cannot hold the waiting item of class Mine")
        return super().get_state()


def test_a_stop_whose_state_cannot_be_saved_is_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [*QUICK, "stop.training_iteration=3", "tracking.display=plain"]
    with _UnsavedTrainer.from_experiment(CARTPOLE, settings) as trainer:
        record = fit(trainer, tmp_path)
    assert (record.status, record.stop_reason) == ("interrupted", "SIGINT after iteration 2")
    assert checkpoints_of(tmp_path) == []
    what = "no checkpoint was written at this stop: a checkpoint cannot hold the waiting item of class Mine"
    assert what in capsys.readouterr().out


def test_a_checkpoint_goes_on_in_its_run(tmp_path: Path) -> None:
    with Trainer.from_experiment(CARTPOLE, THREE) as trainer:
        first = fit(trainer, tmp_path / "run")
    with Trainer.from_checkpoint(first.checkpoint, ["stop.training_iteration=4"]) as trainer:
        assert trainer.last_result["training_iteration"] == 3
        record = fit(trainer)
    assert record.path == first.path
    assert [line["training_iteration"] for line in progress_of(record.path)] == [1, 2, 3, 4]
    assert result_of(record.path)["stop_reason"] == "reached 4 iterations"


def test_from_checkpoint_uses_the_newest_checkpoint_of_a_run_dir(tmp_path: Path) -> None:
    with Trainer.from_experiment(CARTPOLE, THREE) as trainer:
        fit(trainer, tmp_path)
    with Trainer.from_checkpoint(tmp_path) as trainer:
        assert trainer.last_result["training_iteration"] == 3
    with pytest.raises(UserError, match="does not contain a checkpoint"):
        Trainer.from_checkpoint(tmp_path / "checkpoints")


def test_a_run_dir_holds_one_run(tmp_path: Path) -> None:
    with Trainer.from_experiment(CARTPOLE, THREE) as trainer:
        fit(trainer, tmp_path)
    with Trainer.from_experiment(CARTPOLE, THREE) as trainer, pytest.raises(UserError, match="already contains a run"):
        fit(trainer, tmp_path)


def test_a_trainer_of_a_dataclass_does_not_fit(tmp_path: Path) -> None:
    with Trainer.from_experiment(CARTPOLE, THREE) as trainer:
        config = trainer.config
    with Trainer(config) as trainer, pytest.raises(UserError, match="made from a dataclass") as caught:
        fit(trainer, tmp_path)
    assert "Trainer.from_experiment" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_without_a_run_needs_a_folder(tmp_path: Path) -> None:
    with Trainer.from_experiment(CARTPOLE, THREE) as trainer:
        record = fit(trainer, tmp_path / "run")
    moved = Path(record.checkpoint).rename(tmp_path / "best")
    with Trainer.from_checkpoint(moved) as trainer:
        with pytest.raises(UserError, match="cannot determine the run dir") as caught:
            fit(trainer)
        assert "run_dir" in str(caught.value)
        assert fit(trainer, tmp_path / "further").status == "finished"
