"""RLlink servers: env steps received per second, ours and RLlib's, and actions per second computed by ours.

Episodes of 200 CartPole steps in messages of 4,000 steps over loopback, encoded before the measurement. Each
measurement uses a server process and a client process; the systems are interleaved. Nothing learns.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import bench_common as bc


@dataclass(frozen=True)
class Row:
    """One measurement: server, kind of messages, number of clients."""

    title: str
    peer: str
    kind: str
    clients: int


RLLIB = "RLlib, msgpack, 1 client"
ONE, MANY = "ours, array blocks, 1 client", "ours, array blocks, 64 clients"
ACTIONS = "ours, actions for 64 clients, one request in flight each"
ROWS = (
    Row(RLLIB, "rllib", "rllib", 1),
    Row("ours, JSON of the base protocol, 1 client", "ours", "json", 1),
    Row(ONE, "ours", "columns", 1),
    Row(MANY, "ours", "columns", 64),
    Row(ACTIONS, "ours", "actions", 64),
)


def main() -> None:
    parser = bc.parser(__doc__, "rllink.json", "ours,rllib")
    parser.add_number("--repeats", 3, 1)
    args, extra = parser.parse_known_args()
    seconds = ["--warmup-s", "1", "--seconds", "2"] if args.quick else []
    known = bc.Peer("ours", "ours_rllink.py"), bc.Peer("rllib", "rllib_rllink.py")
    peers = {peer.name: peer for peer in bc.named_peers(args, known)}
    machine = bc.machine_facts(peers.values())
    results: dict[str, list[bc.Result]] = {row.title: [] for row in ROWS}
    for _ in range(args.repeats):
        for row in ROWS:
            if row.peer in peers:
                flags = ["--kind", row.kind, "--clients", str(row.clients), *seconds, *extra]
                result = bc.run_peer(peers[row.peer], flags)
                results[row.title].append(result)
                bc.log(f"{row.title}: {result['steps_per_s']:,.0f}")
    bc.write_json(args.out, {"machine": machine, "repeats": args.repeats, "results": results})
    print(f"Median of {args.repeats} runs (min-max), env steps per second.\n")
    print(table(results))
    print("\n" + bc.machine_text(machine))


def table(results: dict[str, list[bc.Result]]) -> str:
    """Return one row per measurement: steps per second, the ratio to RLlib, and notes."""
    speeds = {title: [run["steps_per_s"] for run in runs] for title, runs in results.items()}
    rows = []
    for title, measured in speeds.items():
        if not measured:
            continue
        note = "-"
        if title == MANY and speeds[ONE]:
            note = f"{bc.ratio(measured, speeds[ONE])} of one client"
        if title == ACTIONS:
            note = "answers in {:.1f} ms (median), {:.1f} ms (99 %)".format(
                *(statistics.median(run[name] for run in results[title]) for name in ("median_ms", "p99_ms"))
            )
        is_compared = title not in (RLLIB, ACTIONS)
        against = bc.ratio(measured, speeds[RLLIB]) if is_compared and speeds[RLLIB] else "-"
        rows.append([title, bc.spread(measured), against, note])
    return bc.markdown_table(["what", "env steps/s", "ours/RLlib", ""], rows)


if __name__ == "__main__":
    main()
