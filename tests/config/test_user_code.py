"""A custom experiment, environment, dataclass and connectors, all outside the repository."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.config.compose import compose_experiment
from runner.config.validation import build_experiment_config
from tests.config.conftest import ProblemsOf, WriteConfig
from tests.support.configs import config_from

CODE = """
from dataclasses import dataclass
import gymnasium as gym
from runner.config.algorithms import PPOConfig
from runner.pipelines.connector import Connector

class Maze(gym.Env):
    def __init__(self, size=3, *, walls=()): ...

class SmallMaze(Maze): ...

@dataclass
class Connector(Connector):
    factor: float = 1.0

@dataclass(frozen=True)
class MyPPOConfig(PPOConfig):
    gamma: float = 0.5
    temperature: float = 2.0
"""
EXPERIMENT = """# @package _global_
# Out of the maze.
defaults:
  - override /algorithm: my_ppo
env:
  _target_: my_lab.code.SmallMaze
  env_config: {size: 4}
connectors:
  learner:
    - append: {_target_: my_lab.code.Connector, factor: "${algorithm.temperature}"}
stop: {training_iteration: 3}
"""
ALGORITHM = """# Mine.
schema: my_lab.code.MyPPOConfig
clip_param: 0.1
"""


@pytest.fixture
def config_dir(tmp_path: Path, write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    package = tmp_path / "my_lab"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "code.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    write_config("algorithm/my_ppo", ALGORITHM)
    yield write_config("experiment/maze", EXPERIMENT)
    for name in [name for name in sys.modules if name.startswith("my_lab")]:
        del sys.modules[name]


def test_a_users_own_experiment(config_dir: Path) -> None:
    composed = compose_experiment(["+experiment=maze", "algorithm.temperature=3"], config_dir)
    config = build_experiment_config(composed)
    assert type(config.algorithm).__name__ == "MyPPOConfig"
    assert config.algorithm.temperature == 3.0  # type: ignore[attr-defined]
    assert config.algorithm.clip_param == 0.1  # type: ignore[attr-defined]
    assert config.connectors.learner[0]["append"]["factor"] == 3
    assert composed.sources["algorithm.clip_param"] == "my_conf/algorithm/my_ppo.yaml:3"


def test_a_schema_named_on_the_command_line(config_dir: Path) -> None:
    overrides = [
        "+experiment=ppo_cartpole",
        "algorithm.schema=my_lab.code.MyPPOConfig",
        "algorithm.temperature=5",
    ]
    config = config_from(*overrides, config_dir=config_dir)
    assert config.algorithm.temperature == 5.0  # type: ignore[attr-defined]
    assert config.algorithm.gamma == 0.5
    assert config_from(*overrides[:2], "~algorithm.temperature", config_dir=config_dir) == config_from(
        *overrides[:2], config_dir=config_dir
    )


def test_a_schema_that_is_removed_with_another_value_is_not_chosen(problems_of: ProblemsOf) -> None:
    [problem] = problems_of(["+experiment=ppo_cartpole", "~algorithm.schema=my_lab.code.MyPPOConfig"])
    assert "is runner.config.algorithms.PPOConfig and not my_lab.code.MyPPOConfig" in problem.what
