"""`runner`'s SAC, TQC or CrossQ with the settings of `sac_cli.SACSettings`."""

from __future__ import annotations

from ours_cli import run
from sac_cli import CROSSQ, HIDDENS, NUM_CRITICS, NUM_DROPPED, NUM_QUANTILES, TQC, SACSettings


def overrides(cfg: SACSettings) -> list[str]:
    of_tqc = [
        f"module.num_critics={NUM_CRITICS}",
        f"module.num_atoms={NUM_QUANTILES}",
        f"algorithm.top_quantiles_to_drop_per_net={NUM_DROPPED}",
    ]
    return [
        *(f"algorithm.{name}_lr={cfg.lr}" for name in ("actor", "critic", "alpha")),
        *([] if cfg.algorithm == CROSSQ else [f"algorithm.tau={cfg.tau}"]),
        f"algorithm.train_batch_size_per_learner={cfg.train_batch_size}",
        f"algorithm.training_intensity={cfg.train_batch_size / cfg.num_envs}",
        f"algorithm.min_sample_timesteps_per_iteration={cfg.steps_per_iteration}",
        f"algorithm.replay_capacity={cfg.replay_capacity}",
        f"algorithm.num_steps_sampled_before_learning_starts={cfg.learning_starts}",
        f"module.fcnet_hiddens=[{','.join(map(str, HIDDENS))}]",
        "~stop.evaluation/env_runners/episode_return_mean",
        "stop.num_env_steps_sampled_lifetime=1000000000",
        *(of_tqc if cfg.algorithm == TQC else []),
    ]


if __name__ == "__main__":
    run(__doc__, SACSettings, lambda cfg: f"{cfg.algorithm}_pendulum", overrides)
