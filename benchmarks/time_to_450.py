"""Seconds until the mean return of the last 100 episodes of CartPole is 450.

Every system trains with the same PPO settings and seeds. A run that does not reach it within 400,000 env steps counts
as not reached (infinite).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import bench_common as bc


def measure_all(peers: Sequence[bc.Peer], seeds: int, flags: Sequence[str]) -> list[bc.Result]:
    results = []
    for seed in range(seeds):
        for peer in peers:
            result = bc.run_peer(peer, [*flags, "--seed", str(seed)])
            results.append(result)
            state = "reached" if result["reached"] else "NOT reached"
            bc.log(f"seed {seed}: {peer.name} {state}, {result['seconds']:.1f} s, {result['env_steps']} steps")
    return results


def seconds(results: Sequence[bc.Result], peer: str) -> list[float]:
    return [r["seconds"] if r["reached"] else math.inf for r in results if r["peer"] == peer]


def row(results: Sequence[bc.Result], peer: str) -> list[str]:
    runs = [r for r in results if r["peer"] == peer]
    reached = [r for r in runs if r["reached"]]
    median_steps = f"{statistics.median(r['env_steps'] for r in reached):,.0f}" if reached else "-"
    times = seconds(results, peer)
    return [
        peer,
        f"{len(reached)}/{len(runs)}",
        bc.spread(times, digits=1),
        median_steps,
        faster(times, seconds(results, "ours")),
    ]


def faster(theirs: Sequence[float], ours: Sequence[float]) -> str:
    """Return how many times as long as ours a system takes, if both medians exist."""
    if not theirs or not ours or math.inf in (statistics.median(theirs), statistics.median(ours)):
        return "-"
    return bc.ratio(theirs, ours)


def table(results: Sequence[bc.Result], peers: Sequence[bc.Peer]) -> str:
    header = ["system", "reached", "seconds to 450", "env steps (of runs that reached)", "seconds / ours"]
    return bc.markdown_table(header, [row(results, peer.name) for peer in peers])


def main() -> None:
    parser = bc.parser(__doc__, "time_to_450.json")
    parser.add_number("--seeds", 5, 1)
    parser.add_argument("--num-envs", type=int, default=8)
    args, extra = parser.parse_known_args()
    peers = bc.named_peers(args, bc.CARTPOLE_PEERS)
    machine = bc.machine_facts(peers)
    flags = ["--mode", "time-to-450", "--num-envs", str(args.num_envs), *extra]
    results = measure_all(peers, args.seeds, flags)
    bc.write_json(args.out, {"machine": machine, "flags": flags, "time_to_450": results})
    print(f"Median of {args.seeds} seeds (min-max), flags: {' '.join(flags)}\n")
    print(table(results, peers))
    print("\n" + bc.machine_text(machine))


if __name__ == "__main__":
    main()
