"""Env steps per second of SAC, TQC and CrossQ on Pendulum, one update of 256 rows per env step, two layers of 256.

Systems: ours (eager and compiled), a bare torch loop (SAC), SB3's SAC, SB3-contrib's TQC and CrossQ, which also updates
the policy in every step and normalises its layers. `--python-sb3` needs both.
"""

from __future__ import annotations

import argparse
import sys

import bench_common as bc
from side_by_side import Bar, run_speeds

TQC, CROSSQ = ("--algorithm", "tqc"), ("--algorithm", "crossq")
BARS = (
    Bar(bc.OURS, "sb3", 1.2),
    Bar(bc.OURS, "bare", 1.05),
    Bar(bc.OURS_COMPILED, "sb3", 1.5),
    Bar(bc.OURS_COMPILED, "bare", 1.3),
    Bar("ours-tqc", "sb3-tqc", 1.3),
    Bar("ours-tqc-compiled", "sb3-tqc", 1.3),
    Bar("ours-crossq", "sb3-crossq", 1.2),
    Bar("ours-crossq-compiled", "sb3-crossq", 1.5),
)


def known_peers(args: argparse.Namespace) -> list[bc.Peer]:
    return [
        bc.Peer(bc.OURS, "ours_sac.py", sys.executable),
        bc.Peer(bc.OURS_COMPILED, "ours_sac.py", sys.executable, bc.COMPILED),
        bc.Peer("bare", "bare_sac.py", sys.executable),
        bc.Peer("sb3", "sb3_sac.py", args.python_sb3),
        bc.Peer("ours-tqc", "ours_sac.py", sys.executable, TQC),
        bc.Peer("ours-tqc-compiled", "ours_sac.py", sys.executable, (*bc.COMPILED, *TQC)),
        bc.Peer("sb3-tqc", "sb3_sac.py", args.python_sb3, TQC),
        bc.Peer("ours-crossq", "ours_sac.py", sys.executable, CROSSQ),
        bc.Peer("ours-crossq-compiled", "ours_sac.py", sys.executable, (*bc.COMPILED, *CROSSQ)),
        bc.Peer("sb3-crossq", "sb3_sac.py", args.python_sb3, CROSSQ),
    ]


def main() -> None:
    names = ",".join(peer.name for peer in known_peers(argparse.Namespace(python_sb3=None)))
    run_speeds(__doc__, "soft_actor_critic", known_peers, names, BARS)


if __name__ == "__main__":
    main()
