"""Env steps per second of PPO on CartPole with 4,096 sub-environments in one process, batches of 131,072 env steps.

Systems: ours (eager and compiled), a bare torch loop, SB3 and RLlib; SB3 and RLlib also with 64 sub-environments, where
they may be faster. Minibatches of 32,768 rows, 4 epochs.
"""

from __future__ import annotations

import bench_common as bc
from side_by_side import Bar, run_speeds

BATCH, MINIBATCH, EPOCHS = 131_072, 32_768, 4
FLAGS = (f"--train-batch-size={BATCH}", f"--minibatch-size={MINIBATCH}", f"--num-epochs={EPOCHS}")
MANY, FEW = ("--num-envs", "4096"), ("--num-envs", "64")
PEERS = (
    bc.Peer(bc.OURS, "ours.py", MANY),
    bc.Peer(bc.OURS_COMPILED, "ours.py", (*bc.COMPILED, *MANY)),
    bc.Peer("bare", "bare_loop.py", MANY),
    bc.Peer("sb3", "sb3.py", MANY),
    bc.Peer("sb3-64", "sb3.py", FEW),
    bc.Peer("rllib", "rllib.py", MANY),
    bc.Peer("rllib-64", "rllib.py", FEW),
)
BARS = (Bar("ours", "bare", 1.0), Bar("ours", "sb3", 1.0), Bar("ours", "sb3-64", 1.0), Bar("ours", "rllib-64", 1.0))


if __name__ == "__main__":
    run_speeds(__doc__, "many_environments", PEERS, BARS, peer_flags=FLAGS, per_iteration=BATCH)
