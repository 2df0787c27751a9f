"""The trainer as a Ray Tune trainable: a trial's overrides, its checkpoints, its mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner import as_trainable
from runner.config.errors import ConfigError
from tests.conftest import QUICK, without_times

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]  # Ray Tune warns about its own future


def _same(result: Any, other: Any) -> None:
    ours = without_times(result)
    assert {name: other[name] for name in ours if "episode" in name or name.startswith("learners/")} == {
        name: value for name, value in ours.items() if "episode" in name or name.startswith("learners/")
    }


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
