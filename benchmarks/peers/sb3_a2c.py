"""Stable-Baselines3's A2C with the settings of `a2c_cli.A2CSettings`; for the network see `sb3.py`."""

from __future__ import annotations

from a2c_cli import A2CSettings
from peer_cli import MAX_GRAD_NORM, Iterate, run
from sb3 import POLICY, iterations_of_model, make_envs
from stable_baselines3 import A2C


def build(cfg: A2CSettings) -> Iterate:
    a2c = A2C(
        "MlpPolicy",
        make_envs("CartPole-v1", cfg),
        learning_rate=cfg.lr,
        n_steps=cfg.rollout_length,
        gamma=cfg.gamma,
        gae_lambda=cfg.lambda_,
        ent_coef=cfg.entropy_coeff,
        vf_coef=cfg.vf_loss_coeff,
        max_grad_norm=MAX_GRAD_NORM,
        use_rms_prop=False,
        policy_kwargs=POLICY,
        seed=cfg.seed,
        device="cpu",
        verbose=0,
    )
    return iterations_of_model(a2c, cfg.rows_per_iteration)


if __name__ == "__main__":
    run("sb3", __doc__, build, A2CSettings)
