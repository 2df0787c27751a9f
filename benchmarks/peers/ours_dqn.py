"""`runner`'s DQN with the settings of `dqn_cli.DQNSettings`."""

from __future__ import annotations

import math
import tempfile
import time
from typing import Any

import torch
from dqn_cli import (
    ALPHA,
    BETA,
    C51,
    DQN,
    HIDDEN,
    MAX_GRAD_NORM,
    N_STEP,
    NUM_ATOMS,
    RAINBOW,
    SIGMA0,
    UNIFORM,
    V_MAX,
    V_MIN,
    DQNSettings,
)
from peer_cli import COMPILED, Progress, measure, parse_settings, report

from runner import Trainer

DISTRIBUTION = [
    *("module.q_distribution=categorical", f"module.num_atoms={NUM_ATOMS}"),
    *(f"module.v_min={V_MIN}", f"module.v_max={V_MAX}"),
]
VARIANTS = {
    DQN: [],
    C51: DISTRIBUTION,
    RAINBOW: [
        *DISTRIBUTION,
        *("module.dueling=true", "module.head_fcnet_hiddens=[]", "module.noisy=true", f"module.sigma0={SIGMA0}"),
        *(f"algorithm.n_step={N_STEP}", "algorithm.double_q=true", "algorithm.epsilon=0.0"),
        "algorithm.replay_buffers.replay._target_=runner.replay.PrioritizedReplayBuffer",
        *(f"+algorithm.replay_buffers.replay.alpha={ALPHA}", f"+algorithm.replay_buffers.replay.beta={BETA}"),
    ],
}


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
        *VARIANTS[cfg.algorithm],
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
