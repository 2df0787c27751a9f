"""Stable-Baselines3's DQN with the settings of `dqn_cli.DQNSettings`."""

from __future__ import annotations

import math
import time

import torch
from dqn_cli import HIDDEN, MAX_GRAD_NORM, UNIFORM, DQNSettings
from peer_cli import Iterate, Progress, measure, parse_settings, report
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.utils import safe_mean
from stable_baselines3.common.vec_env import DummyVecEnv


def build(cfg: DQNSettings) -> Iterate:
    dqn = DQN(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=cfg.num_envs, seed=cfg.seed, vec_env_cls=DummyVecEnv),
        learning_rate=cfg.lr,
        buffer_size=cfg.replay_capacity,
        learning_starts=cfg.learning_starts,
        batch_size=cfg.train_batch_size,
        gamma=cfg.gamma,
        train_freq=1,
        gradient_steps=1,
        target_update_interval=cfg.target_network_update_freq,
        exploration_initial_eps=cfg.epsilon,
        exploration_final_eps=cfg.epsilon,
        max_grad_norm=MAX_GRAD_NORM,
        policy_kwargs={"net_arch": [HIDDEN]},
        seed=cfg.seed,
        device="cpu",
        verbose=0,
    )
    dqn.set_logger(configure(format_strings=[""]))  # keep SB3's bookkeeping, without output

    def iterate() -> Progress:
        dqn.learn(cfg.steps_per_iteration, reset_num_timesteps=False)
        returns = [episode["r"] for episode in dqn.ep_info_buffer or ()]
        return Progress(dqn.num_timesteps, float(safe_mean(returns)) if returns else math.nan)

    return iterate


def main() -> None:
    cfg = parse_settings(__doc__, DQNSettings)
    if cfg.replay != UNIFORM:
        raise SystemExit("Stable-Baselines3 only supports uniform replay")
    torch.set_num_threads(1)
    start = time.perf_counter()
    iterate = build(cfg)
    report(measure("sb3", cfg, iterate, time.perf_counter() - start))


if __name__ == "__main__":
    main()
