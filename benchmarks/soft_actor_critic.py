"""Env steps per second of SAC, TQC and CrossQ on Pendulum, one update of 256 rows per env step, two layers of 256.

Systems: ours (eager and compiled), a bare torch loop (SAC), SB3's SAC, SB3-contrib's TQC and CrossQ, which also updates
the policy in every step and normalises its layers. `--python-sb3` needs both.
"""

from __future__ import annotations

import bench_common as bc
from side_by_side import Bar, run_speeds

TQC, CROSSQ = ("--algorithm", "tqc"), ("--algorithm", "crossq")
PEERS = (
    bc.Peer(bc.OURS, "ours_sac.py"),
    bc.Peer(bc.OURS_COMPILED, "ours_sac.py", bc.COMPILED),
    bc.Peer("bare", "bare_sac.py"),
    bc.Peer("sb3", "sb3_sac.py"),
    bc.Peer("ours-tqc", "ours_sac.py", TQC),
    bc.Peer("ours-tqc-compiled", "ours_sac.py", (*bc.COMPILED, *TQC)),
    bc.Peer("sb3-tqc", "sb3_sac.py", TQC),
    bc.Peer("ours-crossq", "ours_sac.py", CROSSQ),
    bc.Peer("ours-crossq-compiled", "ours_sac.py", (*bc.COMPILED, *CROSSQ)),
    bc.Peer("sb3-crossq", "sb3_sac.py", CROSSQ),
)
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


if __name__ == "__main__":
    run_speeds(__doc__, "soft_actor_critic", PEERS, BARS)
