"""Env steps per second of DQN on CartPole, one update of 32 rows per env step: ours, a bare torch loop, SB3.

One sub-environment and one hidden layer of 256, so that the cost per env step and per update matters.
"""

from __future__ import annotations

import bench_common as bc
from side_by_side import Bar, run_speeds

PRIORITIZED = "ours-prioritized"
PEERS = (
    bc.Peer(bc.OURS, "ours_dqn.py"),
    bc.Peer(bc.OURS_COMPILED, "ours_dqn.py", bc.COMPILED),
    bc.Peer(PRIORITIZED, "ours_dqn.py", ("--replay", "prioritized")),
    bc.Peer("bare", "bare_dqn.py"),
    bc.Peer("sb3", "sb3_dqn.py"),
)
BARS = (
    Bar(bc.OURS, "sb3", 1.2),
    Bar(PRIORITIZED, bc.OURS, 1 / 1.15),
    Bar(bc.OURS_COMPILED, "sb3", 2.0),
    Bar(bc.OURS_COMPILED, "bare", 1.2),
)


if __name__ == "__main__":
    run_speeds(__doc__, "dqn", PEERS, BARS)
