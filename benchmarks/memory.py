"""PPO with an LSTM on CartPole without velocities: ours and RLlib, 16 sub-environments in one process."""

from __future__ import annotations

import argparse
import sys

import bench_common as bc
import side_by_side

NUM_ENVS = 16


def known_peers(args: argparse.Namespace) -> list[bc.Peer]:
    return [
        bc.Peer("ours", "ours.py", sys.executable, ("--experiment", "ppo_stateless_cartpole_lstm")),
        bc.Peer("rllib", "rllib_memory.py", args.python_rllib),
        bc.Peer("rllib-sync", "rllib_memory.py", args.python_rllib, ("--vectorize-mode", "sync")),
    ]


if __name__ == "__main__":
    side_by_side.run(__doc__, "memory", NUM_ENVS, known_peers, "ours,rllib,rllib-sync")
