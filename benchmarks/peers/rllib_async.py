"""RLlib's IMPALA or APPO (new API stack) with the settings of `async_cli`, and its defaults for everything else."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import ray
import torch
from async_cli import BATCH, NUM_ENVS, NUM_RUNNERS, measure, parse
from peer_cli import report
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig


def main() -> None:
    settings = parse()
    torch.set_num_threads(1)
    ray.init(address="local", num_cpus=NUM_RUNNERS + 2, include_dashboard=False, log_to_driver=False)
    config = {"impala": IMPALAConfig, "appo": APPOConfig}[settings.algorithm]()
    config = (
        config.environment("CartPole-v1")
        .env_runners(num_env_runners=NUM_RUNNERS, num_envs_per_env_runner=NUM_ENVS)
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=BATCH, lr=3e-3, grad_clip=0.5)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[32], vf_share_layers=True))
        .reporting(min_time_s_per_iteration=1)
        .debugging(seed=settings.seed, log_level="ERROR")
    )
    algorithm = config.build_algo()
    report(measure(settings, lambda: int(algorithm.train()["num_env_steps_sampled_lifetime"])))
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
