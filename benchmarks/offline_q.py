"""Updates per second of IQL and CQL from 60,000 recorded Pendulum steps: 256 rows per update, two layers of 64.

Systems: ours (eager and compiled) and d3rlpy. The time includes waiting for batches: ours come from Ray Data, which
reads episode files; d3rlpy's come from a list of transitions in its process.
"""

from __future__ import annotations

import sys
import tempfile

import bench_common as bc
from side_by_side import Bar, run_speeds

NUM_STEPS = 60_000
IQL, CQL = ("--algorithm", "iql"), ("--algorithm", "cql")
PEERS = (
    bc.Peer("ours-iql", "ours_offline_q.py", IQL),
    bc.Peer("ours-iql-compiled", "ours_offline_q.py", (*bc.COMPILED, *IQL)),
    bc.Peer("d3rlpy-iql", "d3rlpy_offline_q.py", IQL),
    bc.Peer("ours-cql", "ours_offline_q.py", CQL),
    bc.Peer("ours-cql-compiled", "ours_offline_q.py", (*bc.COMPILED, *CQL)),
    bc.Peer("d3rlpy-cql", "d3rlpy_offline_q.py", CQL),
)
BARS = (Bar("ours-iql-compiled", "d3rlpy-iql", 3.0), Bar("ours-cql-compiled", "d3rlpy-cql", 1.5))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-recordings-") as folder:
        script = str(bc.PEERS_DIR / "make_recordings.py")
        command = [sys.executable, script, folder, str(NUM_STEPS), "Pendulum-v1"]
        bc.run_system("ours", command, is_result=False)
        run_speeds(__doc__, "offline_q", PEERS, BARS, "updates", ("--data", folder))


if __name__ == "__main__":
    main()
