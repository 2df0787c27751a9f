"""`runner`'s DQN with the settings of `dqn_cli.DQNSettings`."""

from __future__ import annotations

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
from ours_cli import run

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


def overrides(cfg: DQNSettings) -> list[str]:
    kind = "ReplayBuffer" if cfg.replay == UNIFORM else "PrioritizedReplayBuffer"
    return [
        "env_runners.rollout_fragment_length=1",
        f"algorithm.lr={cfg.lr}",
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
        *VARIANTS[cfg.algorithm],
    ]


if __name__ == "__main__":
    run(__doc__, DQNSettings, lambda cfg: "dqn_cartpole", overrides)
