"""Env steps per second of DQN on CartPole, one update of 32 rows per env step: ours, a bare torch loop, SB3.

One sub-environment and one hidden layer of 256, so that the cost per env step and per update matters.
"""

from __future__ import annotations

import argparse
import sys

import bench_common as bc
from side_by_side import Bar, run_speeds

PRIORITIZED = "ours-prioritized"


BARS = (
    Bar(bc.OURS, "sb3", 1.2),
    Bar(PRIORITIZED, bc.OURS, 1 / 1.15),
    Bar(bc.OURS_COMPILED, "sb3", 2.0),
    Bar(bc.OURS_COMPILED, "bare", 1.2),
)


def known_peers(args: argparse.Namespace) -> list[bc.Peer]:
    return [
        bc.Peer(bc.OURS, "ours_dqn.py", sys.executable),
        bc.Peer(bc.OURS_COMPILED, "ours_dqn.py", sys.executable, bc.COMPILED),
        bc.Peer(PRIORITIZED, "ours_dqn.py", sys.executable, ("--replay", "prioritized")),
        bc.Peer("bare", "bare_dqn.py", sys.executable),
        bc.Peer("sb3", "sb3_dqn.py", args.python_sb3),
    ]


def main() -> None:
    run_speeds(__doc__, "dqn", known_peers, f"{bc.OURS},{bc.OURS_COMPILED},{PRIORITIZED},bare,sb3", BARS)


if __name__ == "__main__":
    main()
