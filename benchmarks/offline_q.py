"""Updates per second of IQL and CQL from 60,000 recorded Pendulum steps: 256 rows per update, two layers of 64.

Systems: ours (eager and compiled) and d3rlpy. The time includes waiting for batches: ours come from Ray Data, which
reads episode files; d3rlpy's come from a list of transitions in its process.
"""

from __future__ import annotations

import argparse
import sys
import tempfile

import bench_common as bc
from side_by_side import Bar, run_speeds

NUM_STEPS = 60_000
BARS = (Bar("ours-iql-compiled", "d3rlpy-iql", 3.0), Bar("ours-cql-compiled", "d3rlpy-cql", 1.5))


def known_peers(args: argparse.Namespace) -> list[bc.Peer]:
    peers = []
    for algorithm in ("iql", "cql"):
        flags = ("--algorithm", algorithm)
        peers += [
            bc.Peer(f"ours-{algorithm}", "ours_offline_q.py", sys.executable, flags),
            bc.Peer(f"ours-{algorithm}-compiled", "ours_offline_q.py", sys.executable, (*bc.COMPILED, *flags)),
            bc.Peer(f"d3rlpy-{algorithm}", "d3rlpy_offline_q.py", args.python_d3rlpy, flags),
        ]
    return peers


def main() -> None:
    names = ",".join(peer.name for peer in known_peers(argparse.Namespace(python_d3rlpy="")))
    with tempfile.TemporaryDirectory(prefix="bench-recordings-") as folder:
        script = str(bc.PEERS_DIR / "make_recordings.py")
        command = [sys.executable, script, folder, str(NUM_STEPS), "Pendulum-v1"]
        bc.run_system("ours", command, is_result=False)
        run_speeds(__doc__, "offline_q", known_peers, names, BARS, "updates", ("--data", folder))


if __name__ == "__main__":
    main()
