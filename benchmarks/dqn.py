"""Env steps per second of DQN on CartPole, one update of 32 rows for each env step: ours, a bare torch loop, SB3.

One sub-environment and one hidden layer of 256, so that what is done for each env step and each update counts.
"""

from __future__ import annotations

import argparse
import sys

import bench_common as bc
from side_by_side import Bar, measure_all, rows_of_bars
from throughput import speeds

PRIORITIZED = "ours-prioritized"


BARS = (
    Bar(bc.OURS, "sb3", 2.0),
    Bar(bc.OURS, "bare", 1.0),
    Bar(PRIORITIZED, bc.OURS, 1 / 1.15),
    Bar(bc.OURS_COMPILED, "sb3", 3.0),
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
    parser = bc.parser(__doc__, "dqn.json", f"{bc.OURS},{bc.OURS_COMPILED},{PRIORITIZED},bare,sb3")
    bc.add_repeats(parser)
    args, extra = parser.parse_known_args()
    repeats, iterations, warmup = bc.repeats_of(args)
    peers = bc.named_peers(args, known_peers(args))
    machine = bc.machine_facts(peers)
    flags = ["--iterations", str(iterations), "--warmup", str(warmup), *extra]
    results = measure_all(peers, repeats, flags)
    bc.write_json(args.out, {"machine": machine, "flags": flags, "repeats": repeats, "dqn": results})
    print(f"Median env steps/s of {repeats} runs (min-max), {iterations} iterations of 500 env steps each.\n")
    print(
        bc.markdown_table(
            [f"{peer.name} (steps/s)" for peer in peers], [[bc.spread(speeds(results, peer.name)) for peer in peers]]
        )
    )
    print("\nSpeed against another system in the same turn, median (min-max).\n")
    print(bc.markdown_table(["", "measured", "bar"], rows_of_bars(results, BARS)))
    print("\n" + bc.machine_text(machine))


if __name__ == "__main__":
    main()
