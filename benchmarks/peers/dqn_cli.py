"""The settings of the peers of `benchmarks/dqn.py` and `benchmarks/rainbow.py`."""

from __future__ import annotations

from dataclasses import dataclass

from peer_cli import Settings

HIDDEN = 256
MAX_GRAD_NORM = 10.0
UNIFORM, PRIORITIZED = "uniform", "prioritized"
DQN, C51, RAINBOW = "dqn", "c51", "rainbow"
# C51 and Rainbow: range of CartPole's returns.
NUM_ATOMS, V_MIN, V_MAX = 51, 0.0, 100.0
# Rainbow only.
N_STEP, SIGMA0, ALPHA, BETA = 3, 0.5, 0.5, 0.4


@dataclass(frozen=True)
class DQNSettings(Settings):
    """One run of one peer; the DQN settings are the same for every peer. One update per env step."""

    num_envs: int = 1
    lr: float = 2.5e-4
    train_batch_size: int = 32
    steps_per_iteration: int = 500
    learning_starts: int = 1000
    replay_capacity: int = 50_000
    target_network_update_freq: int = 500
    epsilon: float = 0.1
    replay: str = UNIFORM
    algorithm: str = DQN
