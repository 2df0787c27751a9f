"""PPO on CartPole for several agents: ours and RLlib, 8 sub-environments in one process.

Two agents use a module each; with `--num-agents 16` all agents share one.
"""

from __future__ import annotations

import argparse
import sys

import bench_common as bc
import side_by_side

NUM_ENVS = 8


def known_peers(args: argparse.Namespace) -> list[bc.Peer]:
    return [
        bc.Peer("ours", "ours.py", sys.executable, ("--experiment", "ppo_multi_agent_cartpole")),
        bc.Peer("rllib", "rllib_multi_agent.py", args.python_rllib),
    ]


if __name__ == "__main__":
    side_by_side.run(__doc__, "multi_agent", NUM_ENVS, known_peers, "ours,rllib")
