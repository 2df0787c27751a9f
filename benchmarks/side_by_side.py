"""Compares systems on one setting: the speed of complete iterations, and the shares of sampling and updates.

For the same settings, systems may do slightly different amounts of work, so the work is also counted and shown.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import bench_common as bc
from throughput import speeds

ENV_STEPS = 4000  # seconds and work are reported per this many env steps, one iteration


@dataclass(frozen=True)
class Column:
    """One number per run: `scale` times the value under `key`, divided by the count under `per` (if set).

    `is_better_high` may be None, for numbers that are neither better high nor better low.
    """

    title: str
    key: str
    per: str | None = None
    scale: int = 1
    digits: int = 0
    is_better_high: bool | None = None

    def values(self, results: Sequence[bc.Result], peer: str) -> list[float]:
        runs = [r for r in results if r["peer"] == peer]
        return [self.scale * r[self.key] / (r[self.per] if self.per else 1) for r in runs]

    def ratio(self, ours: Sequence[float], theirs: Sequence[float]) -> str:
        """Return how many times as fast ours is; ours / theirs for other numbers."""
        return bc.ratio(theirs, ours) if self.is_better_high is False else bc.ratio(ours, theirs)


COLUMNS = (
    Column("env steps/s", "steps_per_s", is_better_high=True),
    Column("sampling (s)", "sampling_s", "env_steps", ENV_STEPS, 3, is_better_high=False),
    Column("update (s)", "update_s", "env_steps", ENV_STEPS, 3, is_better_high=False),
    Column("update / gradient step (ms)", "update_s", "gradient_steps", 1000, 2, is_better_high=False),
    Column("agent steps", "agent_steps", "env_steps", ENV_STEPS),
    Column("loss rows", "loss_rows", "env_steps", ENV_STEPS),
    Column("gradient steps", "gradient_steps", "env_steps", ENV_STEPS),
    Column("parameters", "num_parameters"),
)


def table(results: Sequence[bc.Result], peers: Sequence[bc.Peer]) -> str:
    """Return one row per system, and one per other system with the ratio to ours."""
    rows = []
    for peer in peers:
        cells = [column.values(results, peer.name) for column in COLUMNS]
        rows.append([peer.name, *(_cell(values, column) for values, column in zip(cells, COLUMNS, strict=True))])
    for peer in peers:
        if peer.name != "ours":
            ratios = [c.ratio(c.values(results, "ours"), c.values(results, peer.name)) for c in COLUMNS]
            rows.append([f"ours/{peer.name}", *ratios])
    return bc.markdown_table(["system", *(column.title for column in COLUMNS)], rows)


def _cell(values: Sequence[float], column: Column) -> str:
    if column.is_better_high is None:  # an amount of work, which hardly varies
        return f"{statistics.median(values):,.{column.digits}f}"
    return bc.spread(values, column.digits)


@dataclass(frozen=True)
class Bar:
    """A target: the minimum ratio of speeds of one system to another."""

    name: str
    other: str
    least: float


def rows_of_bars(results: Sequence[bc.Result], bars: Sequence[Bar]) -> list[list[str]]:
    """Return for each target the ratios of speeds in the same turn, median first."""
    rows = []
    for bar in bars:
        pairs = zip(speeds(results, bar.name), speeds(results, bar.other), strict=False)
        ratios = [ours / theirs for ours, theirs in pairs]
        if ratios:
            is_met = statistics.median(ratios) >= bar.least
            verdict = f"{bar.least:.2f}: {'met' if is_met else 'missed'}"
            rows.append([f"{bar.name} / {bar.other}", bc.spread(ratios, 2), verdict])
    return rows


def measured(
    description: str | None, name: str, known: Sequence[bc.Peer], peer_flags: Sequence[str], unit: str = "env steps"
) -> tuple[list[bc.Peer], list[bc.Result], str, str]:
    """Measure the systems of the command line in turn, in one process each, and write `<name>.json`.

    Args:
        known: systems that `--peers` can name; by default all of them run.
        peer_flags: flags for every peer.
        unit: unit of the speeds, for messages.

    Returns:
        Systems, results, and the texts about the number of runs and the machine.
    """
    parser = bc.parser(description, f"{name}.json", ",".join(peer.name for peer in known))
    bc.add_repeats(parser)
    args, extra = parser.parse_known_args()
    peers = bc.named_peers(args, known)
    machine = bc.machine_facts(peers)
    flags = [*peer_flags, "--iterations", str(args.iterations), "--warmup", str(args.warmup), *extra]
    results = []
    for repeat in range(args.repeats):
        for peer in peers:
            results.append(bc.run_peer(peer, ["--seed", str(repeat), *flags]))
            bc.log(f"[{repeat + 1}/{args.repeats}] {peer.name} {results[-1]['steps_per_s']:,.0f} {unit}/s")
    bc.write_json(args.out, {"machine": machine, "flags": flags, "repeats": args.repeats, name: results})
    return peers, results, f"{args.repeats} runs (min-max), {args.iterations} iterations", bc.machine_text(machine)


def run_speeds(
    description: str | None,
    name: str,
    known: Sequence[bc.Peer],
    bars: Sequence[Bar],
    unit: str = "env steps",
    peer_flags: Sequence[str] = (),
    per_iteration: int = 500,
) -> None:
    """Run a comparison of speeds, and print speeds and targets; see `measured`. `per_iteration` is in `unit`."""
    peers, results, runs, machine = measured(description, name, known, peer_flags, unit)
    print(f"Median {unit}/s of {runs} of {per_iteration:,} {unit} each.\n")
    rows = [[peer.name, bc.spread(speeds(results, peer.name))] for peer in peers]
    print(bc.markdown_table(["system", f"{unit}/s"], rows))
    print("\nRatio of speeds to another system in the same turn, median (min-max).\n")
    print(bc.markdown_table(["", "measured", "bar"], rows_of_bars(results, bars)))
    print("\n" + machine)


def run(description: str | None, name: str, known: Sequence[bc.Peer], num_envs: int) -> None:
    """Run a comparison with `num_envs` sub-environments in one process, and print the table; see `measured`."""
    peers, results, runs, machine = measured(description, name, known, ("--num-envs", str(num_envs)))
    print(f"Median of {runs} each, {num_envs} sub-environments, 1 process.")
    print(f"Seconds and work per {ENV_STEPS:,} env steps; `ours/...` shows how many times as fast ours is.\n")
    print(table(results, peers))
    print("\n" + machine)
