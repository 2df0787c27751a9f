"""Env steps per second of A2C on CartPole with 8 sub-environments and fragments of 5: ours, a bare torch loop, SB3.

An update uses 40 env steps, so the fixed costs of fragments and updates matter; PPO's 4000 steps per update hide them.
"""

from __future__ import annotations

import bench_common as bc
from side_by_side import Bar, run_speeds

PEERS = (bc.Peer(bc.OURS, "ours_a2c.py"), bc.Peer("bare", "bare_a2c.py"), bc.Peer("sb3", "sb3_a2c.py"))
BARS = (Bar(bc.OURS, "sb3", 1.0), Bar(bc.OURS, "bare", 1.0))


if __name__ == "__main__":
    run_speeds(__doc__, "a2c", PEERS, BARS, per_iteration=4000)
