"""`runner`'s A2C with the settings of `a2c_cli.A2CSettings`."""

from __future__ import annotations

import math
import tempfile
import time
from typing import Any

import torch
from a2c_cli import A2CSettings
from peer_cli import COMPILED, HIDDEN, MAX_GRAD_NORM, Progress, measure, parse_settings, report

from runner import Trainer


def overrides(cfg: A2CSettings, run_dir: str) -> list[str]:
    return [
        f"seed={cfg.seed}",
        f"env_runners.num_envs_per_env_runner={cfg.num_envs}",
        f"algorithm.lr={cfg.lr}",
        f"algorithm.gamma={cfg.gamma}",
        f"algorithm.lambda_={cfg.lambda_}",
        "algorithm.standardize_advantages=false",
        f"algorithm.vf_loss_coeff={cfg.vf_loss_coeff}",
        f"algorithm.entropy_coeff={cfg.entropy_coeff}",
        f"algorithm.grad_clip={MAX_GRAD_NORM}",
        f"algorithm.train_batch_size_per_learner={cfg.rows}",
        f"algorithm.min_sample_timesteps_per_iteration={cfg.rows_per_iteration}",
        f"module.fcnet_hiddens=[{HIDDEN}]",
        "module.fcnet_activation=tanh",
        "module.vf_share_layers=true",
        "evaluation.evaluation_interval=null",
        f"learners.compile={str(cfg.learner == COMPILED).lower()}",
        f"hydra.run.dir={run_dir}",
    ]


def run(cfg: A2CSettings) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-ours-") as run_dir:
        start = time.perf_counter()
        with Trainer.from_experiment("a2c_cartpole", overrides=overrides(cfg, run_dir)) as trainer:

            def iterate() -> Progress:
                result = trainer.train()
                return_mean = result["env_runners/episode_return_mean"]
                return Progress(
                    int(result["num_env_steps_sampled_lifetime"]),
                    math.nan if return_mean is None else float(return_mean),
                )

            return measure("ours", cfg, iterate, time.perf_counter() - start)


def main() -> None:
    cfg = parse_settings(__doc__, A2CSettings)
    torch.set_num_threads(1)
    report(run(cfg))


if __name__ == "__main__":
    main()
