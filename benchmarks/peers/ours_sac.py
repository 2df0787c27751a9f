"""`runner`'s SAC, TQC or CrossQ with the settings of `sac_cli.SACSettings`."""

from __future__ import annotations

import math
import tempfile
import time
from typing import Any

import torch
from peer_cli import COMPILED, Progress, measure, parse_settings, report
from sac_cli import CROSSQ, HIDDENS, NUM_CRITICS, NUM_DROPPED, NUM_QUANTILES, TQC, SACSettings

from runner import Trainer


def overrides(cfg: SACSettings, run_dir: str) -> list[str]:
    of_tqc = [
        f"module.num_critics={NUM_CRITICS}",
        f"module.num_atoms={NUM_QUANTILES}",
        f"algorithm.top_quantiles_to_drop_per_net={NUM_DROPPED}",
    ]
    return [
        f"seed={cfg.seed}",
        f"env_runners.num_envs_per_env_runner={cfg.num_envs}",
        *(f"algorithm.{name}_lr={cfg.lr}" for name in ("actor", "critic", "alpha")),
        f"algorithm.gamma={cfg.gamma}",
        *([] if cfg.algorithm == CROSSQ else [f"algorithm.tau={cfg.tau}"]),
        f"algorithm.train_batch_size_per_learner={cfg.train_batch_size}",
        f"algorithm.training_intensity={cfg.train_batch_size / cfg.num_envs}",
        f"algorithm.min_sample_timesteps_per_iteration={cfg.steps_per_iteration}",
        f"algorithm.replay_capacity={cfg.replay_capacity}",
        f"algorithm.num_steps_sampled_before_learning_starts={cfg.learning_starts}",
        f"module.fcnet_hiddens=[{','.join(map(str, HIDDENS))}]",
        "evaluation.evaluation_interval=null",
        "~stop.evaluation/env_runners/episode_return_mean",
        "stop.num_env_steps_sampled_lifetime=1000000000",
        f"learners.compile={str(cfg.learner == COMPILED).lower()}",
        f"hydra.run.dir={run_dir}",
        *(of_tqc if cfg.algorithm == TQC else []),
    ]


def run(cfg: SACSettings) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-ours-") as run_dir:
        start = time.perf_counter()
        with Trainer.from_experiment(f"{cfg.algorithm}_pendulum", overrides=overrides(cfg, run_dir)) as trainer:

            def iterate() -> Progress:
                result = trainer.train()
                return_mean = result["env_runners/episode_return_mean"]
                return Progress(
                    int(result["num_env_steps_sampled_lifetime"]),
                    math.nan if return_mean is None else float(return_mean),
                )

            return measure("ours", cfg, iterate, time.perf_counter() - start)


def main() -> None:
    cfg = parse_settings(__doc__, SACSettings)
    torch.set_num_threads(1)
    report(run(cfg))


if __name__ == "__main__":
    main()
