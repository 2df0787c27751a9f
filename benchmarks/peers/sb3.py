"""Stable-Baselines3's PPO with the settings of `peer_cli.Settings`.

SB3 shares layers between policy and value only through the features extractor,
so the hidden layer is the extractor and `net_arch` is empty.
"""

from __future__ import annotations

import warnings

import gymnasium
from peer_cli import HIDDEN, MAX_GRAD_NORM, Iterate, Progress, Settings, run
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import safe_mean
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import Tensor, nn


class SharedHidden(BaseFeaturesExtractor):
    """One tanh layer below both heads."""

    def __init__(self, observation_space: gymnasium.spaces.Box) -> None:
        super().__init__(observation_space, features_dim=HIDDEN)
        self.net = nn.Sequential(nn.Linear(observation_space.shape[0], HIDDEN), nn.Tanh())

    def forward(self, observations: Tensor) -> Tensor:
        return self.net(observations)


POLICY = {
    "features_extractor_class": SharedHidden,
    "net_arch": [],
    "optimizer_kwargs": {"eps": 1e-8},  # torch's default, which the other peers use
}


def build(cfg: Settings) -> Iterate:
    env = make_envs("CartPole-v1", cfg)
    with warnings.catch_warnings():
        # 4000 is not a multiple of 128, so SB3 warns that each epoch ends with a short minibatch.
        warnings.filterwarnings("ignore", message=".*truncated mini-batch.*")
        ppo = PPO(
            "MlpPolicy",
            env,
            learning_rate=cfg.lr,
            n_steps=cfg.rollout_length,
            batch_size=cfg.minibatch_size,
            n_epochs=cfg.num_epochs,
            gamma=cfg.gamma,
            gae_lambda=cfg.lambda_,
            clip_range=cfg.clip_param,
            normalize_advantage=True,
            ent_coef=cfg.entropy_coeff,
            vf_coef=cfg.vf_loss_coeff,
            max_grad_norm=MAX_GRAD_NORM,
            policy_kwargs=POLICY,
            seed=cfg.seed,
            device="cpu",
            verbose=0,
        )
    return iterations_of_model(ppo, cfg.rows)


def make_envs(env_id: str, cfg: Settings) -> VecEnv:
    return make_vec_env(env_id, n_envs=cfg.num_envs, seed=cfg.seed, vec_env_cls=DummyVecEnv)


def iterations_of_model(model: BaseAlgorithm, num_steps: int) -> Iterate:
    """Return an iteration of a number of env steps."""
    model.set_logger(configure(format_strings=[""]))  # keep SB3's bookkeeping, without output

    def iterate() -> Progress:
        model.learn(num_steps, reset_num_timesteps=False)
        returns = [episode["r"] for episode in model.ep_info_buffer or ()]
        return Progress(model.num_timesteps, float(safe_mean(returns)))

    return iterate


if __name__ == "__main__":
    run("sb3", __doc__, build)
