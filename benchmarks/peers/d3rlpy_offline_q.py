"""d3rlpy's IQL or CQL with the settings of `offline_q_cli.OfflineQSettings`: the loop of its `fit`, without logging."""

from __future__ import annotations

import math
from pathlib import Path

import d3rlpy
import numpy as np
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
from peer_cli import Iterate, Progress, run


def make(cfg: OfflineQSettings) -> d3rlpy.algos.QLearningAlgoBase:
    encoder = d3rlpy.models.VectorEncoderFactory(hidden_units=HIDDENS)
    common = {
        "actor_learning_rate": LR,
        "critic_learning_rate": LR,
        "batch_size": BATCH,
        "gamma": GAMMA,
        "tau": TAU,
        "actor_encoder_factory": encoder,
        "critic_encoder_factory": encoder,
        "action_scaler": d3rlpy.preprocessing.MinMaxActionScaler(minimum=[-2.0], maximum=[2.0]),
    }
    if cfg.algorithm == CQL:
        config = d3rlpy.algos.CQLConfig(
            **common,
            temp_learning_rate=LR,
            alpha_learning_rate=LR,
            alpha_threshold=LAGRANGIAN_THRESH,
            conservative_weight=MIN_Q_WEIGHT,
            n_action_samples=NUM_ACTIONS,
        )
    else:
        config = d3rlpy.algos.IQLConfig(**common, value_encoder_factory=encoder, weight_temp=BETA, expectile=EXPECTILE)
    return config.create(device=False)


def build(cfg: OfflineQSettings) -> Iterate:
    d3rlpy.seed(cfg.seed)
    arrays = np.load(Path(cfg.data) / "arrays.npz")
    dataset = d3rlpy.dataset.MDPDataset(**arrays)
    epochs = make(cfg).fitter(
        dataset,
        n_steps=(cfg.warmup + cfg.iterations) * UPDATES_AN_ITERATION,
        n_steps_per_epoch=UPDATES_AN_ITERATION,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
        show_progress=False,
        save_interval=cfg.warmup + cfg.iterations + 1,
    )

    def iterate() -> Progress:
        epoch, _ = next(epochs)
        return Progress(epoch * UPDATES_AN_ITERATION, math.nan)

    return iterate


if __name__ == "__main__":
    run("d3rlpy", __doc__, build, OfflineQSettings)
