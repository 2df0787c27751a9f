"""An environment that a function makes, with wrappers around it, in all that a run does with an environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from tests.conftest import QUICK, Run
from tests.support.resuming import assert_command_resumes_exactly

HERE = "tests.system.test_own_environments"


def make_cartpole(max_episode_steps: int = 30) -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", disable_env_checker=True, max_episode_steps=max_episode_steps)


OWN = (
    "+experiment=ppo_cartpole",
    *QUICK,
    "env.env=null",
    f"env._target_={HERE}.make_cartpole",
    "env.env_config.max_episode_steps=20",
    "env.wrappers=[{_target_: gymnasium.wrappers.NormalizeObservation}, "
    "{_target_: gymnasium.wrappers.NormalizeReward, gamma: 0.9}]",
)


def test_stopped_and_resumed_is_straight_and_its_policy_is_evaluated_and_recorded(
    run_main: Run, tmp_path: Path
) -> None:
    assert_command_resumes_exactly(run_main, tmp_path, *OWN, iterations=(2, 4))
    evaluated = run_main("evaluate", "run", "evaluation.evaluation_duration=3")
    assert evaluated.code == 0, evaluated.err
    record = json.loads((tmp_path / "run" / "evaluations.jsonl").read_text())
    assert record["episode_len_max"] <= 20
    recorded = run_main("record", "run", "offline.output=data", "evaluation.evaluation_duration=3")
    assert recorded.code == 0, recorded.err
    assert "3 episodes" in recorded.out


@pytest.mark.ray
def test_a_remote_env_runner(run_main: Run, ray_cluster: None) -> None:
    outcome = run_main(*OWN, "env_runners.num_env_runners=1", "stop.training_iteration=1")
    assert outcome.code == 0, outcome.err
