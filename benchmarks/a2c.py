"""Env steps per second of A2C on CartPole with 8 sub-environments and fragments of 5: ours, a bare torch loop, SB3.

An update uses 40 env steps, so the fixed costs of fragments and updates matter; PPO's 4000 steps per update hide them.
"""

from __future__ import annotations

import argparse
import sys

import bench_common as bc
from side_by_side import measure_all
from throughput import speeds

RATIOS = (("ours/SB3", "sb3"), ("ours/bare", "bare"))


def known_peers(args: argparse.Namespace) -> list[bc.Peer]:
    return [
        bc.Peer(bc.OURS, "ours_a2c.py", sys.executable),
        bc.Peer("bare", "bare_a2c.py", sys.executable),
        bc.Peer("sb3", "sb3_a2c.py", args.python_sb3),
    ]


def main() -> None:
    parser = bc.parser(__doc__, "a2c.json", "ours,bare,sb3")
    bc.add_repeats(parser)
    args, extra = parser.parse_known_args()
    repeats, iterations, warmup = bc.repeats_of(args)
    peers = bc.named_peers(args, known_peers(args))
    machine = bc.machine_facts(peers)
    flags = ["--iterations", str(iterations), "--warmup", str(warmup), *extra]
    results = measure_all(peers, repeats, flags)
    bc.write_json(args.out, {"machine": machine, "flags": flags, "repeats": repeats, "a2c": results})
    print(f"Median env steps/s of {repeats} runs (min-max), {iterations} iterations of 100 updates each.\n")
    header = [*(f"{peer.name} (steps/s)" for peer in peers), *(name for name, _ in RATIOS)]
    cells = [bc.spread(speeds(results, peer.name)) for peer in peers]
    ratios = [bc.ratio(speeds(results, bc.OURS), speeds(results, other)) for _, other in RATIOS]
    print(bc.markdown_table(header, [[*cells, *ratios]]))
    print("\n" + bc.machine_text(machine))


if __name__ == "__main__":
    main()
