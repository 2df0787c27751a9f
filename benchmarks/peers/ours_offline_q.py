"""`runner`'s IQL or CQL with the settings of `offline_q_cli.OfflineQSettings`."""

from __future__ import annotations

import math
import time

import torch
from offline_q_cli import (
    BATCH,
    BETA,
    CQL,
    EXPECTILE,
    GAMMA,
    HIDDENS,
    LAGRANGIAN_THRESH,
    LR,
    MIN_Q_WEIGHT,
    NUM_ACTIONS,
    TAU,
    UPDATES_AN_ITERATION,
    OfflineQSettings,
)
from ours_cli import training
from peer_cli import COMPILED, Progress, measure, parse_settings, report


def overrides(cfg: OfflineQSettings) -> list[str]:
    of_iql = ["algorithm.value_lr=" + str(LR), f"algorithm.beta={BETA}", f"algorithm.expectile={EXPECTILE}"]
    of_cql = [
        f"algorithm.alpha_lr={LR}",
        "algorithm.bc_iters=0",
        f"algorithm.num_actions={NUM_ACTIONS}",
        f"algorithm.min_q_weight={MIN_Q_WEIGHT}",
        "algorithm.lagrangian=true",
        f"algorithm.lagrangian_thresh={LAGRANGIAN_THRESH}",
        "algorithm.initial_alpha=1.0",
    ]
    return [
        f"seed={cfg.seed}",
        f"offline.input_={cfg.data}/episodes",
        f"offline.dataset_num_iters_per_learner={UPDATES_AN_ITERATION}",
        f"algorithm.actor_lr={LR}",
        f"algorithm.critic_lr={LR}",
        f"algorithm.gamma={GAMMA}",
        f"algorithm.tau={TAU}",
        f"algorithm.train_batch_size_per_learner={BATCH}",
        f"module.fcnet_hiddens=[{','.join(map(str, HIDDENS))}]",
        "checkpoint.metric=training_iteration",
        "~stop.evaluation/env_runners/episode_return_mean",
        "stop.training_iteration=1000",
        f"learners.compile={str(cfg.learner == COMPILED).lower()}",
        *(of_cql if cfg.algorithm == CQL else of_iql),
    ]


def main() -> None:
    cfg = parse_settings(__doc__, OfflineQSettings)
    torch.set_num_threads(1)
    start = time.perf_counter()
    with training(f"{cfg.algorithm}_pendulum", overrides(cfg)) as trainer:
        updates = 0

        def iterate() -> Progress:
            nonlocal updates
            trainer.train()
            updates += UPDATES_AN_ITERATION
            return Progress(updates, math.nan)

        report(measure("ours", cfg, iterate, time.perf_counter() - start))


if __name__ == "__main__":
    main()
