"""Stable-Baselines3's DQN with the settings of `dqn_cli.DQNSettings`."""

from __future__ import annotations

from dqn_cli import HIDDEN, MAX_GRAD_NORM, UNIFORM, DQNSettings
from peer_cli import Iterate, run
from sb3 import iterations_of_model, make_envs
from stable_baselines3 import DQN


def build(cfg: DQNSettings) -> Iterate:
    if cfg.replay != UNIFORM:
        raise SystemExit("Stable-Baselines3 only supports uniform replay")
    dqn = DQN(
        "MlpPolicy",
        make_envs("CartPole-v1", cfg),
        learning_rate=cfg.lr,
        buffer_size=cfg.replay_capacity,
        learning_starts=cfg.learning_starts,
        batch_size=cfg.train_batch_size,
        gamma=cfg.gamma,
        train_freq=1,
        gradient_steps=1,
        target_update_interval=cfg.target_network_update_freq,
        exploration_initial_eps=cfg.epsilon,
        exploration_final_eps=cfg.epsilon,
        max_grad_norm=MAX_GRAD_NORM,
        policy_kwargs={"net_arch": [HIDDEN]},
        seed=cfg.seed,
        device="cpu",
        verbose=0,
    )
    return iterations_of_model(dqn, cfg.steps_per_iteration)


if __name__ == "__main__":
    run("sb3", __doc__, build, DQNSettings)
