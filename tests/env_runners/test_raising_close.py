"""Environments whose `close` raises: a run, an evaluation and a recording keep their results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from runner.config.schemas import EnvConfig
from runner.env_runners.env_makers import make_vector_env
from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.testing import inspect_environment
from tests.conftest import QUICK, Run

HERE = __name__
WARNING = "RaisesInClose raised RuntimeError in close: the socket is gone"


class RaisesInClose(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.zeros(2, np.float32), float(action), self.t == 4, False, {}

    def close(self) -> None:
        raise RuntimeError("the socket is gone")


class AgentsRaiseInClose(MultiAgentEnv):
    possible_agents = ("a",)
    observation_spaces, action_spaces = {"a": RaisesInClose.observation_space}, {"a": RaisesInClose.action_space}

    def __init__(self) -> None:
        self._env = RaisesInClose()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return {"a": self._env.reset()[0]}, {}

    def step(self, actions: Any) -> Any:
        obs, reward, is_over, _, _ = self._env.step(actions["a"])
        return {"a": obs}, {"a": reward}, {"__all__": is_over}, {}, {}

    def close(self) -> None:
        raise RuntimeError("the socket is gone")


RUN = ("+experiment=ppo_cartpole", *QUICK, "env.env=null", f"env._target_={HERE}.RaisesInClose")


def test_a_run_an_evaluation_and_a_recording(run_main: Run, tmp_path: Path) -> None:
    run_dir, data = tmp_path / "run", tmp_path / "data"
    trained = run_main(*RUN, "stop.training_iteration=1", f"hydra.run.dir={run_dir}")
    assert trained.code == 0, trained.err
    evaluated = run_main("evaluate", str(run_dir), "evaluation.evaluation_duration=2")
    assert evaluated.code == 0, evaluated.err
    assert json.loads((run_dir / "evaluations.jsonl").read_text())["num_episodes"] == 2
    recorded = run_main("record", str(run_dir), f"offline.output={data}", "evaluation.evaluation_duration=2")
    assert recorded.code == 0, recorded.err
    told = " ".join((run_dir / "runner.log").read_text().split())
    assert f"[WARNING] - {WARNING} where {Path(__file__)}:" in told
    assert "RaisesInClose.close" in told


@pytest.mark.parametrize("options", [{"mode": "sync"}, {"mode": "sync", "restarts": True}, {"mode": "async"}])
def test_sub_environments(options: dict[str, Any]) -> None:
    envs = make_vector_env(EnvConfig(_target_=f"{HERE}.RaisesInClose"), 2, seed=0, **options)
    envs.reset(("check", 0, 0))
    envs.close()


class CountsCloses(RaisesInClose):
    num_closed = 0

    def close(self) -> None:
        CountsCloses.num_closed += 1


def test_sub_environments_that_can_be_restarted_are_closed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = make_vector_env(EnvConfig(_target_=f"{HERE}.CountsCloses"), 2, "sync", seed=0, restarts=True)
    envs.reset(("check", 0, 0))
    monkeypatch.setattr(CountsCloses, "num_closed", 0)  # do not count the environment made for its spaces
    envs.close()
    assert CountsCloses.num_closed == 2


def test_check_env_reports_it() -> None:
    for make in (RaisesInClose, AgentsRaiseInClose):
        found = inspect_environment(make, 20)
        assert not found.faults
        (problem,) = (one for one in found.warnings if "close" in one.what)
        assert problem.what == f"{make.__name__} raised RuntimeError in close: the socket is gone"
        assert f"{make.__name__}.close" in str(problem.where)
