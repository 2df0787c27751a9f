"""Env steps per second of C51 and Rainbow on CartPole, one update of 32 rows per env step.

Systems: ours (eager and compiled), a bare torch loop. One sub-environment and one hidden layer of 256, as in `dqn.py`.
"""

from __future__ import annotations

import bench_common as bc
from side_by_side import Bar, run_speeds

C51, RAINBOW = ("--algorithm", "c51"), ("--algorithm", "rainbow")
PEERS = (
    bc.Peer("ours-c51", "ours_dqn.py", C51),
    bc.Peer("ours-c51-compiled", "ours_dqn.py", (*bc.COMPILED, *C51)),
    bc.Peer("bare-c51", "bare_rainbow.py", C51),
    bc.Peer("ours-rainbow", "ours_dqn.py", RAINBOW),
    bc.Peer("ours-rainbow-compiled", "ours_dqn.py", (*bc.COMPILED, *RAINBOW)),
    bc.Peer("bare-rainbow", "bare_rainbow.py", RAINBOW),
)
BARS = (
    Bar("ours-c51", "bare-c51", 1.0),
    Bar("ours-c51-compiled", "bare-c51", 1.0),
    Bar("ours-rainbow", "bare-rainbow", 1.0),
    Bar("ours-rainbow-compiled", "bare-rainbow", 1.0),
)


if __name__ == "__main__":
    run_speeds(__doc__, "rainbow", PEERS, BARS)
