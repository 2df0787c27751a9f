"""Env steps per second of PPO on CartPole with 4,096 sub-environments in one process, batches of 131,072 env steps.

Systems: ours (eager and compiled), a bare torch loop, SB3 and RLlib; SB3 and RLlib also with 64 sub-environments, where
they may be faster. Minibatches of 32,768 rows, 4 epochs.
"""

from __future__ import annotations

import argparse
import sys

import bench_common as bc
from side_by_side import Bar, run_speeds

BATCH, MINIBATCH, EPOCHS = 131_072, 32_768, 4
MANY, FEW = ("--num-envs", "4096"), ("--num-envs", "64")
BARS = (Bar("ours", "bare", 1.0), Bar("ours", "sb3", 1.0), Bar("ours", "sb3-64", 1.0), Bar("ours", "rllib-64", 1.0))


def known_peers(args: argparse.Namespace) -> list[bc.Peer]:
    return [
        bc.Peer(bc.OURS, "ours.py", sys.executable, MANY),
        bc.Peer(bc.OURS_COMPILED, "ours.py", sys.executable, (*bc.COMPILED, *MANY)),
        bc.Peer("bare", "bare_loop.py", sys.executable, MANY),
        bc.Peer("sb3", "sb3.py", args.python_sb3, MANY),
        bc.Peer("sb3-64", "sb3.py", args.python_sb3, FEW),
        bc.Peer("rllib", "rllib.py", args.python_rllib, MANY),
        bc.Peer("rllib-64", "rllib.py", args.python_rllib, FEW),
    ]


def main() -> None:
    names = ",".join(peer.name for peer in known_peers(argparse.Namespace(python_sb3="", python_rllib="")))
    flags = [f"--train-batch-size={BATCH}", f"--minibatch-size={MINIBATCH}", f"--num-epochs={EPOCHS}"]
    run_speeds(__doc__, "many_environments", known_peers, names, BARS, peer_flags=flags, per_iteration=BATCH)


if __name__ == "__main__":
    main()
