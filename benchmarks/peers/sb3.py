"""Stable-Baselines3's PPO with the settings of `peer_cli.Settings`.

SB3 shares layers between policy and value only through the features extractor,
so the hidden layer is the extractor and `net_arch` is empty.
"""

from __future__ import annotations

import math
import time
import warnings

import gymnasium
import torch
from peer_cli import HIDDEN, MAX_GRAD_NORM, Iterate, Progress, Settings, measure, parse_settings, report
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import safe_mean
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor, nn


class SharedHidden(BaseFeaturesExtractor):
    """One tanh layer below both heads."""

    def __init__(self, observation_space: gymnasium.spaces.Box) -> None:
        super().__init__(observation_space, features_dim=HIDDEN)
        self.net = nn.Sequential(nn.Linear(observation_space.shape[0], HIDDEN), nn.Tanh())

    def forward(self, observations: Tensor) -> Tensor:
        return self.net(observations)


def build_ppo(cfg: Settings) -> PPO:
    env = make_vec_env("CartPole-v1", n_envs=cfg.num_envs, seed=cfg.seed, vec_env_cls=DummyVecEnv)
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
            policy_kwargs={
                "features_extractor_class": SharedHidden,
                "net_arch": [],
                "optimizer_kwargs": {"eps": 1e-8},  # torch's default, which the other peers use
            },
            seed=cfg.seed,
            device="cpu",
            verbose=0,
        )
    ppo.set_logger(configure(format_strings=[""]))  # keep SB3's bookkeeping, without output
    return ppo


def build(cfg: Settings) -> Iterate:
    ppo = build_ppo(cfg)

    def iterate() -> Progress:
        ppo.learn(cfg.rows, reset_num_timesteps=False)
        returns = [episode["r"] for episode in ppo.ep_info_buffer or ()]
        return Progress(ppo.num_timesteps, float(safe_mean(returns)) if returns else math.nan)

    return iterate


def main() -> None:
    cfg = parse_settings(__doc__)
    torch.set_num_threads(1)
    start = time.perf_counter()
    iterate = build(cfg)
    report(measure("sb3", cfg, iterate, time.perf_counter() - start))


if __name__ == "__main__":
    main()
