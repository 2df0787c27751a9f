"""The settings of the peers of `benchmarks/soft_actor_critic.py`."""

from __future__ import annotations

from dataclasses import dataclass

from peer_cli import Settings

HIDDENS = (256, 256)
SAC, TQC, CROSSQ = "sac", "tqc", "crossq"
NUM_CRITICS, NUM_QUANTILES, NUM_DROPPED = 2, 25, 2  # TQC, as in SB3-contrib


@dataclass(frozen=True)
class SACSettings(Settings):
    """One run of one peer; the settings are the same for every peer. One update per env step.

    Attributes:
        env: environment of the bare loop; the other peers use Pendulum.
        random_steps: initial env steps of the bare loop with uniformly random actions.
    """

    num_envs: int = 1
    lr: float = 1e-3
    gamma: float = 0.98
    tau: float = 0.005
    train_batch_size: int = 256
    steps_per_iteration: int = 500
    learning_starts: int = 500
    replay_capacity: int = 50_000
    algorithm: str = SAC
    env: str = "Pendulum-v1"
    random_steps: int = 0
