"""RLlib's PPO (new API stack) with the settings of `peer_cli.Settings`."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import ray
import torch
from peer_cli import HIDDEN, MAX_GRAD_NORM, Iterate, Progress, Settings, measure, parse_settings, report
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

NO_VF_CLIP = 1e6  # above any squared value error on CartPole


@dataclass(frozen=True)
class RLlibSettings(Settings):
    """RLlib's own default is "sync", one Python CartPole for each sub-environment.

    It can also step gymnasium's vector CartPole, as `ours` and `bare` do; that is
    faster, so it is what RLlib is measured with unless the flag says otherwise.
    """

    vectorize_mode: str = "vector_entry_point"


def ppo_config(cfg: RLlibSettings) -> PPOConfig:
    return (
        PPOConfig()
        .api_stack(enable_rl_module_and_learner=True, enable_env_runner_and_connector_v2=True)
        .environment("CartPole-v1")
        .env_runners(
            num_env_runners=cfg.num_env_runners,
            num_envs_per_env_runner=cfg.num_envs,
            gym_env_vectorize_mode=cfg.vectorize_mode,
            rollout_fragment_length=cfg.rollout_length,
        )
        .learners(num_learners=0)
        .rl_module(
            model_config=DefaultModelConfig(fcnet_hiddens=[HIDDEN], fcnet_activation="tanh", vf_share_layers=True)
        )
        .training(
            lr=cfg.lr,
            gamma=cfg.gamma,
            lambda_=cfg.lambda_,
            clip_param=cfg.clip_param,
            vf_clip_param=NO_VF_CLIP,
            vf_loss_coeff=cfg.vf_loss_coeff,
            entropy_coeff=cfg.entropy_coeff,
            use_kl_loss=False,
            grad_clip=MAX_GRAD_NORM,
            grad_clip_by="global_norm",
            num_epochs=cfg.num_epochs,
            minibatch_size=cfg.minibatch_size,
            train_batch_size_per_learner=cfg.rows,
        )
        .debugging(seed=cfg.seed, log_level="ERROR")
    )


def progress_of(result: dict[str, Any]) -> Progress:
    env_steps = int(result["num_env_steps_sampled_lifetime"])
    return Progress(env_steps, float(result["env_runners"].get("episode_return_mean", math.nan)))


def build(cfg: RLlibSettings) -> tuple[Algorithm, Iterate]:
    ray.init(num_cpus=cfg.num_env_runners + 1, include_dashboard=False, log_to_driver=False)
    algorithm = ppo_config(cfg).build_algo()
    return algorithm, lambda: progress_of(algorithm.train())


def main() -> None:
    cfg = parse_settings(__doc__, RLlibSettings, remote_runners=True)
    torch.set_num_threads(1)
    start = time.perf_counter()
    algorithm, iterate = build(cfg)
    result = measure("rllib", cfg, iterate, time.perf_counter() - start)
    algorithm.stop()
    ray.shutdown()
    report(result)


if __name__ == "__main__":
    main()
