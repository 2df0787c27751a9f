"""Stable-Baselines3's SAC, or SB3-contrib's TQC or CrossQ, with the settings of `sac_cli.SACSettings`."""

from __future__ import annotations

import math
import time

import torch
from peer_cli import Iterate, Progress, measure, parse_settings, report
from sac_cli import CROSSQ, HIDDENS, NUM_CRITICS, NUM_DROPPED, NUM_QUANTILES, TQC, SACSettings
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.utils import safe_mean
from stable_baselines3.common.vec_env import DummyVecEnv


def build(cfg: SACSettings) -> Iterate:
    kind, options, policy = SAC, {"tau": cfg.tau}, {"net_arch": list(HIDDENS)}
    if cfg.algorithm == TQC:
        from sb3_contrib import TQC as kind  # noqa: N811

        options["top_quantiles_to_drop_per_net"] = NUM_DROPPED
        policy |= {"n_critics": NUM_CRITICS, "n_quantiles": NUM_QUANTILES}
    elif cfg.algorithm == CROSSQ:
        from sb3_contrib import CrossQ as kind  # noqa: N813

        options = {"policy_delay": 1}
    learner = kind(
        "MlpPolicy",
        make_vec_env("Pendulum-v1", n_envs=cfg.num_envs, seed=cfg.seed, vec_env_cls=DummyVecEnv),
        learning_rate=cfg.lr,
        buffer_size=cfg.replay_capacity,
        learning_starts=cfg.learning_starts,
        batch_size=cfg.train_batch_size,
        gamma=cfg.gamma,
        train_freq=1,
        gradient_steps=1,
        policy_kwargs=policy,
        seed=cfg.seed,
        device="cpu",
        verbose=0,
        **options,
    )
    learner.set_logger(configure(format_strings=[""]))  # keep SB3's bookkeeping, without output

    def iterate() -> Progress:
        learner.learn(cfg.steps_per_iteration, reset_num_timesteps=False)
        returns = [episode["r"] for episode in learner.ep_info_buffer or ()]
        return Progress(learner.num_timesteps, float(safe_mean(returns)) if returns else math.nan)

    return iterate


def main() -> None:
    cfg = parse_settings(__doc__, SACSettings)
    torch.set_num_threads(1)
    start = time.perf_counter()
    iterate = build(cfg)
    report(measure("sb3", cfg, iterate, time.perf_counter() - start))


if __name__ == "__main__":
    main()
