"""Env steps per second of C51 and Rainbow on CartPole, one update of 32 rows for each env step.

Systems: ours, eager and compiled, a bare torch loop. One sub-environment and one hidden layer of 256, as in `dqn.py`.
"""

from __future__ import annotations

import sys

import bench_common as bc
from side_by_side import Bar, measure_all, rows_of_bars
from throughput import speeds

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
    parser = bc.parser(__doc__, "rainbow.json", ",".join(peer.name for peer in PEERS))
    bc.add_repeats(parser)
    args, extra = parser.parse_known_args()
    repeats, iterations, warmup = bc.repeats_of(args)
    peers = bc.named_peers(args, list(PEERS))
    machine = bc.machine_facts(peers)
    flags = ["--iterations", str(iterations), "--warmup", str(warmup), *extra]
    results = measure_all(peers, repeats, flags)
    bc.write_json(args.out, {"machine": machine, "flags": flags, "repeats": repeats, "rainbow": results})
    print(f"Median env steps/s of {repeats} runs (min-max), {iterations} iterations of 500 env steps each.\n")
    print(
        bc.markdown_table(["system", "steps/s"], [[peer.name, bc.spread(speeds(results, peer.name))] for peer in peers])
    )
    print("\nSpeed against another system in the same turn, median (min-max).\n")
    print(bc.markdown_table(["", "measured", "bar"], rows_of_bars(results, BARS)))
    print("\n" + bc.machine_text(machine))


if __name__ == "__main__":
    main()
