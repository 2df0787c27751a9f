"""Stable-Baselines3's PPO, SAC or DQN with a task of `benchmarks/suites.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import torch
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from suite_cli import ADAM_EPSILON, CLIP, EVALUATION_SEED, Task, run
from torch import Tensor, nn


class MinAtarFeatures(BaseFeaturesExtractor):
    """MinAtar's network: 16 filters of 3 x 3, and a fully connected layer."""

    def __init__(self, observation_space: gymnasium.spaces.Box, width: int) -> None:
        super().__init__(observation_space, width)
        channels, height, columns = observation_space.shape  # SB3 puts the channels first
        num_features = 16 * (height - 2) * (columns - 2)
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(num_features, width), nn.ReLU()
        )

    def forward(self, observations: Tensor) -> Tensor:
        return self.layers(observations)


def make_ppo(task: Task) -> tuple[BaseAlgorithm, VecEnv]:
    given, gamma = task.settings, task.settings["gamma"]
    envs = VecNormalize(envs_of(task), clip_obs=CLIP, clip_reward=CLIP, gamma=gamma)
    held_out = VecNormalize(held_out_env(task), clip_obs=CLIP, training=False, norm_reward=False)
    held_out.obs_rms = envs.obs_rms
    hiddens = list(task.hiddens)
    model = PPO(
        "MlpPolicy",
        envs,
        learning_rate=task.at_progress("lr"),
        n_steps=given["train_batch_size_per_learner"] // task.num_envs,
        batch_size=given["minibatch_size"],
        n_epochs=given["num_epochs"],
        gamma=gamma,
        gae_lambda=given["lambda_"],
        clip_range=given["clip_param"],
        ent_coef=given["entropy_coeff"],
        vf_coef=given["vf_loss_coeff"],
        max_grad_norm=given["grad_clip"],
        policy_kwargs={
            "net_arch": {"pi": hiddens, "vf": hiddens},
            "activation_fn": nn.Tanh,
            "optimizer_kwargs": {"eps": ADAM_EPSILON},
        },
        seed=task.seed,
        device="cpu",
    )
    return model, held_out


def make_sac(task: Task) -> tuple[BaseAlgorithm, VecEnv]:
    given = task.settings
    model = SAC(
        "MlpPolicy",
        envs_of(task),
        learning_rate=given["critic_lr"],
        policy_kwargs={"net_arch": list(task.hiddens)},
        tau=given["tau"],
        gradient_steps=updates_per_vector_step(task),
        **replay_settings(task),
    )
    return model, held_out_env(task)


def make_dqn(task: Task) -> tuple[BaseAlgorithm, VecEnv]:
    given = task.settings
    [width] = task.hiddens
    model = DQN(
        "CnnPolicy",
        envs_of(task),
        learning_rate=task.at_progress("lr"),
        gradient_steps=updates_per_vector_step(task),
        target_update_interval=given["target_network_update_freq"],
        max_grad_norm=given["grad_clip"],
        n_steps=given["n_step"],
        policy_kwargs={
            "features_extractor_class": MinAtarFeatures,
            "features_extractor_kwargs": {"width": width},
            "net_arch": [],
        },
        **replay_settings(task),
    )
    model.exploration_schedule = task.at_progress("epsilon")
    return model, held_out_env(task)


def replay_settings(task: Task) -> dict[str, Any]:
    given = task.settings
    return {
        "buffer_size": given["replay_capacity"],
        "learning_starts": given["num_steps_sampled_before_learning_starts"],
        "batch_size": given["train_batch_size_per_learner"],
        "gamma": given["gamma"],
        "train_freq": 1,
        "seed": task.seed,
        "device": "cpu",
    }


def updates_per_vector_step(task: Task) -> int:
    given = task.settings
    return int(task.num_envs * given["training_intensity"] / given["train_batch_size_per_learner"])


def envs_of(task: Task, num_envs: int | None = None, seed: int | None = None) -> VecEnv:
    num_envs = task.num_envs if num_envs is None else num_envs
    seed = task.seed if seed is None else seed
    if task.algorithm == "dqn":
        from suite_minatar import MinAtar

        return make_vec_env(lambda: MinAtar(task.env), num_envs, seed)
    return make_vec_env(task.env, num_envs, seed)


def held_out_env(task: Task) -> VecEnv:
    return envs_of(task, 1, EVALUATION_SEED + task.seed)


def build(task: Task) -> tuple[Callable[[], int], Callable[[], Sequence[float]]]:
    torch.set_num_threads(1)
    model, held_out = {"ppo": make_ppo, "sac": make_sac, "dqn": make_dqn}[task.algorithm](task)

    def train() -> int:
        return int(model.learn(task.num_env_steps).num_timesteps)

    def evaluate() -> Sequence[float]:
        returns, _ = evaluate_policy(model, held_out, task.num_episodes, return_episode_rewards=True)
        return returns

    return train, evaluate


if __name__ == "__main__":
    run(__doc__, build)
