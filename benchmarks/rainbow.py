"""Env steps per second of C51 and Rainbow on CartPole, one update of 32 rows per env step.

Systems: ours (eager and compiled), a bare torch loop. One sub-environment and one hidden layer of 256, as in `dqn.py`.
"""

from __future__ import annotations

import sys

import bench_common as bc
from side_by_side import Bar, run_speeds

C51, RAINBOW = ("--algorithm", "c51"), ("--algorithm", "rainbow")
BARS = (
    Bar("ours-c51", "bare-c51", 1.0),
    Bar("ours-c51-compiled", "bare-c51", 1.0),
    Bar("ours-rainbow", "bare-rainbow", 1.0),
    Bar("ours-rainbow-compiled", "bare-rainbow", 1.0),
)
PEERS = tuple(
    bc.Peer(f"{name}-{variant}", script, sys.executable, flags)
    for name, script, variant, flags in (
        ("ours", "ours_dqn.py", "c51", C51),
        ("ours", "ours_dqn.py", "c51-compiled", (*bc.COMPILED, *C51)),
        ("bare", "bare_rainbow.py", "c51", C51),
        ("ours", "ours_dqn.py", "rainbow", RAINBOW),
        ("ours", "ours_dqn.py", "rainbow-compiled", (*bc.COMPILED, *RAINBOW)),
        ("bare", "bare_rainbow.py", "rainbow", RAINBOW),
    )
)


def main() -> None:
    run_speeds(__doc__, "rainbow", lambda _: list(PEERS), ",".join(peer.name for peer in PEERS), BARS)


if __name__ == "__main__":
    main()
