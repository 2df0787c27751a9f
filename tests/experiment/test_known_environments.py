"""Environments of libraries of their own, each with its experiment, for a few env steps."""

from __future__ import annotations

import pytest

from runner.experiment.trainer import Trainer

SMALL_NETWORK = ("module.conv_filters=[[4,8,4],[4,4,2]]", "module.fcnet_hiddens=[8]")
SMALL = {
    "ppo_half_cheetah": ("algorithm.train_batch_size_per_learner=128",),
    "ppo_minigrid_empty": ("algorithm.train_batch_size_per_learner=256", "env_runners.num_envs_per_env_runner=2"),
    "ppo_atari_breakout": (
        *SMALL_NETWORK, "algorithm.train_batch_size_per_learner=64", "algorithm.minibatch_size=32",
        "env_runners.num_envs_per_env_runner=2",
    ),
    "dqn_atari_breakout": (
        *SMALL_NETWORK, "algorithm.num_steps_sampled_before_learning_starts=40",
        "algorithm.min_sample_timesteps_per_iteration=80", "algorithm.replay_capacity=1000",
        "env_runners.num_envs_per_env_runner=2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("experiment", SMALL)
def test_an_iteration(experiment: str) -> None:
    overrides = [*SMALL[experiment], "evaluation.evaluation_interval=10"]
    with Trainer.from_experiment(experiment, overrides) as trainer:
        result = trainer.train()
        assert result["num_env_steps_trained_lifetime"]
        assert any(name.startswith("learners/default_policy/") for name in result)


@pytest.mark.parametrize("env", ["bipedal_walker", "hopper", "walker2d", "ant", "humanoid"])
def test_an_iteration_of_a_walker(env: str) -> None:
    overrides = ["algorithm.train_batch_size_per_learner=64", "algorithm.num_epochs=1"]
    overrides += ["evaluation.evaluation_interval=null", "env_runners.num_envs_per_env_runner=2"]
    with Trainer.from_experiment(f"ppo_{env}", overrides) as trainer:
        assert (trainer.train()["num_env_steps_trained_lifetime"] or 0) >= 64
