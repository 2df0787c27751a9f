"""Environments that are stepped apart from each other, and how they fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from runner.config.errors import Problem, RunFailure
from runner.config.schemas import EnvConfig
from runner.env_runners.vector_envs import SubEnvironments
from runner.streams import integer_seed
from tests.support.problems import shown_problems

SEED, N = 4, 3
NAME = ("env_runner", 0, 0)
# What is made, as the block `env` says it: images, dicts, numbers, wrappers that keep something, a state of its own.
CONFIGS = {
    "cartpole": EnvConfig(env="CartPole-v1"),
    "dict": EnvConfig(_target_="runner.environments.DictCartPole"),
    "discrete": EnvConfig(_target_="tests.support.environments.MatchDiscrete"),
    "continuous": EnvConfig(_target_="tests.support.environments.MatchContinuous"),
    "image": EnvConfig(_target_="runner.environments.Catch", env_config={"rows": 5, "columns": 4, "balls": 2}),
    "wrapped": EnvConfig(
        env="CartPole-v1",
        wrappers=[
            {"_target_": "gymnasium.wrappers.NormalizeObservation"},
            {"_target_": "gymnasium.wrappers.RecordEpisodeStatistics"},
            {"_target_": "gymnasium.wrappers.FrameStackObservation", "stack_size": 2},
        ],
    ),
}


def seed_of(n: int, k: int) -> int:
    """The seed of episode k of sub-environment n."""
    return integer_seed(SEED, "env_runner", 0, 0, n, k)


def failing(fault: str, at: Mapping[tuple[int, int], int]) -> EnvConfig:
    """CartPole that fails in episodes k of sub-environments n at these steps."""
    steps = {str(seed_of(*episode)): step for episode, step in at.items()}
    wrapper = {"_target_": "tests.support.environments.FailsAt", "fault": fault, "steps": steps}
    return EnvConfig(env="CartPole-v1", wrappers=[wrapper])


def actions_for(env: SubEnvironments, num_steps: int) -> list[Any]:
    env.single_action_space.seed(1)
    return [np.stack([env.single_action_space.sample() for _ in range(N)]) for _ in range(num_steps)]


def failure_of(env: SubEnvironments, steps: int = 30) -> Problem:
    """Return the problem that random steps end with."""

    def take_steps() -> None:
        env.reset(NAME)
        for action in actions_for(env, steps):
            env.step(action)

    with pytest.raises(RunFailure) as caught:
        take_steps()
    (problem,) = shown_problems(caught.value)
    return problem
