"""Env steps per second of PPO on CartPole: ours, a bare torch loop, SB3, RLlib.

Each measurement runs in a separate process, one at a time. The systems are interleaved (ours, bare, sb3, rllib, ours,
...), so a slow minute of the machine affects all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import bench_common as bc

REMOTE_CAPABLE = ("ours", "rllib", "rllib-sync")
RATIOS = (("ours/RLlib", "rllib"), ("ours/SB3", "sb3"), ("ours/bare", "bare"))


@dataclass(frozen=True)
class Setting:
    num_envs: int
    num_env_runners: int

    @property
    def label(self) -> str:
        if self.num_env_runners:
            return f"{self.num_env_runners} remote runners x {self.num_envs}"
        return f"1 process, {self.num_envs} sub-environments"

    @property
    def flags(self) -> list[str]:
        return ["--num-envs", str(self.num_envs), "--num-env-runners", str(self.num_env_runners)]

    def peers(self, peers: Sequence[bc.Peer]) -> list[bc.Peer]:
        return [p for p in peers if not self.num_env_runners or p.name in REMOTE_CAPABLE]


SETTINGS = (Setting(8, 0), Setting(64, 0), Setting(4, 2), Setting(32, 2))

Results = dict[Setting, list[bc.Result]]


def measure_all(peers: Sequence[bc.Peer], repeats: int, flags: Sequence[str]) -> Results:
    results: Results = {setting: [] for setting in SETTINGS}
    for repeat in range(repeats):
        for setting in SETTINGS:
            for peer in setting.peers(peers):
                result = bc.run_peer(peer, [*setting.flags, "--seed", str(repeat), *flags])
                results[setting].append(result)
                bc.log(f"[{repeat + 1}/{repeats}] {setting.label}: {peer.name} {result['steps_per_s']:,.0f}")
    return results


def speeds(results: Sequence[bc.Result], peer: str) -> list[float]:
    return [r["steps_per_s"] for r in results if r["peer"] == peer]


def table(results: Results, peers: Sequence[bc.Peer]) -> str:
    header = ["setting", *(f"{peer.name} (steps/s)" for peer in peers), *(name for name, _ in RATIOS)]
    rows = []
    for setting, found in results.items():
        cells = [bc.spread(speeds(found, peer.name)) for peer in peers]
        ratios = [bc.ratio(speeds(found, "ours"), speeds(found, other)) for _, other in RATIOS]
        rows.append([setting.label, *cells, *ratios])
    return bc.markdown_table(header, rows)


def main() -> None:
    parser = bc.parser(__doc__, "throughput.json")
    bc.add_repeats(parser)
    args, extra = parser.parse_known_args()
    peers = bc.named_peers(args, bc.CARTPOLE_PEERS)
    machine = bc.machine_facts(peers)
    flags = ["--mode", "throughput", "--iterations", str(args.iterations), "--warmup", str(args.warmup), *extra]
    results = measure_all(peers, args.repeats, flags)
    raw = [{"setting": asdict(setting), "results": found} for setting, found in results.items()]
    bc.write_json(args.out, {"machine": machine, "flags": flags, "repeats": args.repeats, "throughput": raw})
    print(f"Median env steps/s of {args.repeats} runs (min-max), {args.iterations} iterations each.\n")
    print(table(results, peers))
    print("\n" + bc.machine_text(machine))


if __name__ == "__main__":
    main()
