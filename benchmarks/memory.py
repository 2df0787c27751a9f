"""PPO with an LSTM on CartPole without velocities: ours and RLlib, 16 sub-environments in one process."""

from __future__ import annotations

import bench_common as bc
import side_by_side

PEERS = (
    bc.Peer("ours", "ours.py", ("--experiment", "ppo_stateless_cartpole_lstm")),
    bc.Peer("rllib", "rllib_memory.py"),
    bc.Peer("rllib-sync", "rllib_memory.py", ("--vectorize-mode", "sync")),
)

if __name__ == "__main__":
    side_by_side.run(__doc__, "memory", PEERS, num_envs=16)
