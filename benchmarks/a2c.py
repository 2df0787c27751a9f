"""Env steps per second of A2C on CartPole with 8 sub-environments and fragments of 5: ours, a bare torch loop, SB3.

An update uses 40 env steps, so the fixed costs of fragments and updates matter; PPO's 4000 steps per update hide them.
"""

from __future__ import annotations

import argparse
import sys

import bench_common as bc
from side_by_side import Bar, run_speeds

BARS = (Bar(bc.OURS, "sb3", 1.0), Bar(bc.OURS, "bare", 1.0))


def known_peers(args: argparse.Namespace) -> list[bc.Peer]:
    return [
        bc.Peer(bc.OURS, "ours_a2c.py", sys.executable),
        bc.Peer("bare", "bare_a2c.py", sys.executable),
        bc.Peer("sb3", "sb3_a2c.py", args.python_sb3),
    ]


def main() -> None:
    run_speeds(__doc__, "a2c", known_peers, "ours,bare,sb3", BARS, per_iteration=4000)


if __name__ == "__main__":
    main()
