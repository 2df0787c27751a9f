"""The settings of the peers of `benchmarks/offline_q.py`. Needs only the standard library, see `peer_cli.py`."""

from __future__ import annotations

from dataclasses import dataclass

from peer_cli import EAGER, MODES

IQL, CQL = "iql", "cql"
HIDDENS = [64, 64]
BATCH = 256
LR = 3e-4
GAMMA, TAU = 0.99, 0.005
# IQL only.
BETA, EXPECTILE = 3.0, 0.7
# CQL only.
NUM_ACTIONS, MIN_Q_WEIGHT, LAGRANGIAN_THRESH = 10, 5.0, 10.0
UPDATES_AN_ITERATION = 500


@dataclass(frozen=True)
class OfflineQSettings:
    """IQL or CQL on one data set; an iteration is 500 updates."""

    data: str = ""  # folder of make_recordings.py
    algorithm: str = IQL
    learner: str = EAGER  # for our peers
    iterations: int = 4
    warmup: int = 1
    seed: int = 0
    num_envs: int = 0  # no environment is stepped; the other fields are for `peer_cli.measure`
    num_env_runners: int = 0
    mode: str = MODES[0]
