"""`runner`'s DQN with the settings of `dqn_cli.DQNSettings`."""

from __future__ import annotations

import math
import tempfile
import time
from typing import Any

import torch
from dqn_cli import HIDDEN, MAX_GRAD_NORM, UNIFORM, DQNSettings
from peer_cli import COMPILED, Progress, measure, parse_settings, report

from runner import Trainer


def overrides(cfg: DQNSettings, run_dir: str) -> list[str]:
    kind = "ReplayBuffer" if cfg.replay == UNIFORM else "PrioritizedReplayBuffer"
    return [
        f"seed={cfg.seed}",
        f"env_runners.num_envs_per_env_runner={cfg.num_envs}",
        "env_runners.rollout_fragment_length=1",
        f"algorithm.lr={cfg.lr}",
        f"algorithm.gamma={cfg.gamma}",
        f"algorithm.train_batch_size_per_learner={cfg.train_batch_size}",
        f"algorithm.training_intensity={cfg.train_batch_size / cfg.num_envs}",
        f"algorithm.min_sample_timesteps_per_iteration={cfg.steps_per_iteration}",
        f"algorithm.replay_capacity={cfg.replay_capacity}",
        f"algorithm.replay_buffers.replay._target_=runner.replay.{kind}",
        f"algorithm.num_steps_sampled_before_learning_starts={cfg.learning_starts}",
        f"algorithm.target_network_update_freq={cfg.target_network_update_freq}",
        "algorithm.tau=1",
        "algorithm.n_step=1",
        "algorithm.double_q=false",
        "algorithm.td_error_loss_fn=huber",
        f"algorithm.epsilon={cfg.epsilon}",
        f"algorithm.grad_clip={MAX_GRAD_NORM}",
        f"module.fcnet_hiddens=[{HIDDEN}]",
        "module.fcnet_activation=relu",
        "module.dueling=false",
        "evaluation.evaluation_interval=null",
        f"learners.compile={str(cfg.learner == COMPILED).lower()}",
        f"hydra.run.dir={run_dir}",
    ]


def run(cfg: DQNSettings) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-ours-") as run_dir:
        start = time.perf_counter()
        with Trainer.from_experiment("dqn_cartpole", overrides=overrides(cfg, run_dir)) as trainer:

            def iterate() -> Progress:
                result = trainer.train()
                return_mean = result["env_runners/episode_return_mean"]
                return Progress(
                    int(result["num_env_steps_sampled_lifetime"]),
                    math.nan if return_mean is None else float(return_mean),
                )

            return measure("ours", cfg, iterate, time.perf_counter() - start)


def main() -> None:
    cfg = parse_settings(__doc__, DQNSettings)
    torch.set_num_threads(1)
    report(run(cfg))


if __name__ == "__main__":
    main()
