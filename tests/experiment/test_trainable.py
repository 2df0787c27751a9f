"""The trainer as a Ray Tune trainable: a trial's overrides, its checkpoints, its mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner import as_trainable
from runner.config.errors import ConfigError
from runner.experiment.trainer import Trainer
from tests.conftest import QUICK, without_times

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]  # Ray Tune warns about its own future


def _same(result: Any, other: Any) -> None:
    ours = without_times(result)
    assert {name: other[name] for name in ours if "episode" in name or name.startswith("learners/")} == {
        name: value for name, value in ours.items() if "episode" in name or name.startswith("learners/")
    }


def test_trials_have_their_own_overrides(ray_cluster: None, tmp_path: Path) -> None:
    from ray import tune

    tuner = tune.Tuner(
        as_trainable("ppo_cartpole", QUICK),
        param_space={"algorithm.lr": tune.grid_search([1e-2]), "seed": 3},
        run_config=tune.RunConfig(stop={"training_iteration": 1}, storage_path=str(tmp_path), verbose=0),
    )
    results = tuner.fit()
    assert not results.errors
    for trial in results:
        lr = trial.config["algorithm.lr"]
        with Trainer.from_experiment("ppo_cartpole", [*QUICK, f"algorithm.lr={lr}", "seed=3"]) as trainer:
            _same({n: v for n, v in trainer.train().items() if v is not None}, trial.metrics)


def test_a_trial_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    trainable = as_trainable("ppo_cartpole", QUICK)
    first = trainable(config={"seed": 5})
    first.train()
    first.save(str(tmp_path / "checkpoint"))
    files = {path.suffix for path in (tmp_path / "checkpoint" / "runner_checkpoint").iterdir()}
    assert files == {".json", ".safetensors"}
    expected = first.train()
    first.stop()
    second = trainable(config={"seed": 5})
    second.restore(str(tmp_path / "checkpoint"))
    _same(expected, second.train())
    second.stop()


def test_a_mistake_in_a_trial_is_told(tmp_path: Path) -> None:
    trainable = as_trainable("ppo_cartpole", QUICK)
    with pytest.raises(ConfigError, match=r"unknown key algorithm\.gama"):
        trainable(config={"algorithm.gama": 0.9})
