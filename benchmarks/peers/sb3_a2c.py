"""Stable-Baselines3's A2C with the settings of `a2c_cli.A2CSettings`; for the network see `sb3.py`."""

from __future__ import annotations

import math
import time

import torch
from a2c_cli import A2CSettings
from peer_cli import MAX_GRAD_NORM, Iterate, Progress, measure, parse_settings, report
from sb3 import SharedHidden
from stable_baselines3 import A2C
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.utils import safe_mean
from stable_baselines3.common.vec_env import DummyVecEnv


def build(cfg: A2CSettings) -> Iterate:
    a2c = A2C(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=cfg.num_envs, seed=cfg.seed, vec_env_cls=DummyVecEnv),
        learning_rate=cfg.lr,
        n_steps=cfg.rollout_length,
        gamma=cfg.gamma,
        gae_lambda=cfg.lambda_,
        ent_coef=cfg.entropy_coeff,
        vf_coef=cfg.vf_loss_coeff,
        max_grad_norm=MAX_GRAD_NORM,
        use_rms_prop=False,
        policy_kwargs={
            "features_extractor_class": SharedHidden,
            "net_arch": [],
            "optimizer_kwargs": {"eps": 1e-8},  # torch's default, which the other peers use
        },
        seed=cfg.seed,
        device="cpu",
        verbose=0,
    )
    a2c.set_logger(configure(format_strings=[""]))  # keep SB3's bookkeeping, without output

    def iterate() -> Progress:
        a2c.learn(cfg.rows_per_iteration, reset_num_timesteps=False)
        returns = [episode["r"] for episode in a2c.ep_info_buffer or ()]
        return Progress(a2c.num_timesteps, float(safe_mean(returns)) if returns else math.nan)

    return iterate


def main() -> None:
    cfg = parse_settings(__doc__, A2CSettings)
    torch.set_num_threads(1)
    start = time.perf_counter()
    iterate = build(cfg)
    report(measure("sb3", cfg, iterate, time.perf_counter() - start))


if __name__ == "__main__":
    main()
