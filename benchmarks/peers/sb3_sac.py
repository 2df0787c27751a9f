"""Stable-Baselines3's SAC, or SB3-contrib's TQC or CrossQ, with the settings of `sac_cli.SACSettings`."""

from __future__ import annotations

from peer_cli import Iterate, run
from sac_cli import CROSSQ, HIDDENS, NUM_CRITICS, NUM_DROPPED, NUM_QUANTILES, TQC, SACSettings
from sb3 import iterations_of_model, make_envs
from stable_baselines3 import SAC


def build(cfg: SACSettings) -> Iterate:
    kind, options, policy = SAC, {"tau": cfg.tau}, {"net_arch": list(HIDDENS)}
    if cfg.algorithm == TQC:
        from sb3_contrib import TQC as kind  # noqa: N811

        options["top_quantiles_to_drop_per_net"] = NUM_DROPPED
        policy |= {"n_critics": NUM_CRITICS, "n_quantiles": NUM_QUANTILES}
    elif cfg.algorithm == CROSSQ:
        from sb3_contrib import CrossQ as kind  # noqa: N813

        options = {"policy_delay": 1}
    learner = kind(
        "MlpPolicy",
        make_envs("Pendulum-v1", cfg),
        learning_rate=cfg.lr,
        buffer_size=cfg.replay_capacity,
        learning_starts=cfg.learning_starts,
        batch_size=cfg.train_batch_size,
        gamma=cfg.gamma,
        train_freq=1,
        gradient_steps=1,
        policy_kwargs=policy,
        seed=cfg.seed,
        device="cpu",
        verbose=0,
        **options,
    )
    return iterations_of_model(learner, cfg.steps_per_iteration)


if __name__ == "__main__":
    run("sb3", __doc__, build, SACSettings)
