"""Behaviour cloning on recorded data, and recording: ours, a bare torch loop, RLlib, with the same data and network.

Each measurement runs in a separate process, one at a time; the systems are interleaved. Ours and RLlib use one
pre-learner.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import bench_common as bc

BATCH = 1024
PEERS = (bc.Peer("ours", "ours_offline.py"), bc.Peer("bare", "bare_bc.py"), bc.Peer("rllib", "rllib_offline.py"))


@dataclass(frozen=True)
class Row:
    """One comparison: the data and flags of each system."""

    title: str
    flags: tuple[str, ...]
    data: dict[str, str]  # system -> folder


ROWS = (
    Row("episode files, mapped data materialised", ("--mode", "materialised"), {"ours": "episodes", "rllib": "rllib"}),
    Row(
        "tables, mapped data materialised",
        ("--mode", "materialised", "--kind", "table"),
        {"ours": "table", "rllib": "table"},
    ),
    Row("episode files, streaming", ("--mode", "streaming"), {"ours": "episodes", "rllib": "rllib"}),
    Row("tables, streaming", ("--mode", "streaming", "--kind", "table"), {"ours": "table", "rllib": "table"}),
)
RECORDINGS = ("CartPole-v1", "Pendulum-v1")


def make_data(peers: dict[str, bc.Peer], folder: Path, num_steps: int) -> None:
    """Make the same episodes in each format: `episodes` and `table` (ours), `rllib`."""
    for peer, script, *arguments in (
        ("ours", "make_recordings.py", str(folder), str(num_steps)),
        ("rllib", "rllib_offline.py", "convert", str(folder / "episodes"), str(folder / "rllib")),
    ):
        if peer in peers:
            bc.run_system(peer, [peers[peer].python, str(bc.PEERS_DIR / script), *arguments], is_result=False)


def main() -> None:
    parser = bc.parser(__doc__, "offline.json", "ours,bare,rllib")
    parser.add_number("--repeats", 3, 1)
    parser.add_number("--steps", 100_000, 5_000, "env steps of the data; ")
    args, extra = parser.parse_known_args()
    updates = ["--updates", "20" if args.quick else "600", "--warmup", "20" if args.quick else "100"]
    peers = {peer.name: peer for peer in bc.named_peers(args, PEERS)}
    machine = bc.machine_facts(peers.values())
    results: dict[str, dict[str, list[bc.Result]]] = {}

    def measure(title: str, name: str, flags: Sequence[str]) -> None:
        if name in peers:
            result = bc.run_peer(peers[name], flags)
            results.setdefault(title, {}).setdefault(name, []).append(result)
            speed = result.get("updates_per_s") or result["steps_per_s"]
            bc.log(f"{title}: {name} {speed:,.1f} (first batch after {result.get('first_s', 0):.1f} s)")

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_data(peers, folder, args.steps)
        for _ in range(args.repeats):
            measure("bare loop, data in memory", "bare", ["--data", str(folder / "table"), *updates, *extra])
            for row in ROWS:
                for name, data in row.data.items():
                    measure(row.title, name, [*row.flags, "--data", str(folder / data), *updates, *extra])
            for env in RECORDINGS:
                for name in ("ours", "rllib"):
                    output = folder / "recorded"
                    episodes = "16" if args.quick else "400"
                    flags = ["--env", env, "--output", str(output), "--episodes", episodes, *extra]
                    measure(f"recording {env}", name, flags)
                    shutil.rmtree(output, ignore_errors=True)
    bc.write_json(args.out, {"machine": machine, "repeats": args.repeats, "results": results})
    units = f"updates of {BATCH:,} rows per second, env steps recorded per second"
    print(f"Median of {args.repeats} runs (min-max): {units}.\n")
    print(table(results))
    print("\n" + bc.machine_text(machine))


def table(results: dict[str, dict[str, list[bc.Result]]]) -> str:
    """Return one row per comparison: speeds, ratios, and seconds to the first batch."""

    def speeds(title: str, name: str) -> list[float]:
        runs = results.get(title, {}).get(name, [])
        return [run.get("updates_per_s") or run["steps_per_s"] for run in runs]

    bare = speeds("bare loop, data in memory", "bare")
    rows = []
    for title in results:
        ours, rllib = speeds(title, "ours"), speeds(title, "rllib")
        is_learning = "recording" not in title
        first = [run["first_s"] for run in results[title].get("ours", []) if "first_s" in run]
        rows.append(
            [
                title,
                bc.spread(ours, 1 if is_learning else 0),
                bc.spread(rllib, 1 if is_learning else 0),
                bc.ratio(ours, rllib),
                bc.ratio(ours, bare) if is_learning else "-",
                f"{statistics.median(first):.1f} s" if first else "-",
            ]
        )
    if bare:
        rows[0][1:2] = [bc.spread(bare, 1) + " (bare)"]
    header = ["what", "ours", "RLlib", "ours/RLlib", "ours/bare", "ours: first update after"]
    return bc.markdown_table(header, rows)


if __name__ == "__main__":
    main()
