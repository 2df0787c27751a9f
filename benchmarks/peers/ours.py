"""`runner`'s PPO with the settings of `peer_cli.Settings`."""

from __future__ import annotations

import math
import tempfile
import time
from typing import Any

import torch
from peer_cli import HIDDEN, MAX_GRAD_NORM, Progress, Settings, measure, parse_settings, report

from runner import Trainer

EXPERIMENT = "ppo_cartpole"


def overrides(cfg: Settings, run_dir: str) -> list[str]:
    return [
        f"seed={cfg.seed}",
        f"env_runners.num_env_runners={cfg.num_env_runners}",
        f"env_runners.num_envs_per_env_runner={cfg.num_envs}",
        f"algorithm.lr={cfg.lr}",
        f"algorithm.gamma={cfg.gamma}",
        f"algorithm.lambda_={cfg.lambda_}",
        f"algorithm.clip_param={cfg.clip_param}",
        "algorithm.vf_clip_param=null",
        f"algorithm.vf_loss_coeff={cfg.vf_loss_coeff}",
        f"algorithm.entropy_coeff={cfg.entropy_coeff}",
        "algorithm.use_kl_loss=false",
        f"algorithm.grad_clip={MAX_GRAD_NORM}",
        f"algorithm.num_epochs={cfg.num_epochs}",
        f"algorithm.minibatch_size={cfg.minibatch_size}",
        f"algorithm.train_batch_size_per_learner={cfg.rows}",
        f"module.fcnet_hiddens=[{HIDDEN}]",
        "module.fcnet_activation=tanh",
        "module.vf_share_layers=true",
        "evaluation.evaluation_interval=null",
        f"hydra.run.dir={run_dir}",
    ]


def progress_of(result: dict[str, Any]) -> Progress:
    return_mean = result.get("env_runners/episode_return_mean")
    return Progress(
        int(result["num_env_steps_sampled_lifetime"]),
        math.nan if return_mean is None else float(return_mean),
    )


def run(cfg: Settings) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-ours-") as run_dir:
        start = time.perf_counter()
        trainer = Trainer.from_experiment(EXPERIMENT, overrides=overrides(cfg, run_dir))
        setup_s = time.perf_counter() - start
        try:
            return measure("ours", cfg, lambda: progress_of(trainer.train()), setup_s)
        finally:
            trainer.close()


def main() -> None:
    cfg = parse_settings(__doc__, remote_runners=True)
    torch.set_num_threads(1)
    report(run(cfg))


if __name__ == "__main__":
    main()
