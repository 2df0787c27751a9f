"""Microseconds of the env-to-module and module-to-env pipelines per vector step, while sampling CartPole.

Target: the default pipelines take at most 25 us with 8 sub-environments, and less than twice as long with 64.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import bench_common as bc

MAX_US = 25.0
MAX_GROWTH = 2.0
SIZES = (8, 64)  # sub-environments
PEER = bc.Peer(bc.OURS, "pipelines.py")

# Title -> key in the result of a process. `other` is the work done for many steps together, as the share of one step.
WHOLE = {
    "env-to-module": "env_to_module_us",
    "module-to-env": "module_to_env_us",
    "other": "other_us",
    "all pipelines": "total_us",
    "forward pass": "forward_us",
    "env step": "env_step_us",
    "complete vector step": "vector_step_us",
}


@dataclass(frozen=True)
class Variant:
    name: str
    flags: tuple[str, ...] = ()


DEFAULT = Variant("default")
VARIANTS = (
    DEFAULT,
    Variant("+ MeanStdFilter", ("--connectors", "MeanStdFilter")),
    Variant("+ FrameStacking(4)", ("--connectors", "FrameStacking:num_frames:4")),
    Variant("+ PrevActionsPrevRewards", ("--connectors", "PrevActionsPrevRewards")),
    Variant("+ FrameStacking(4) + MeanStdFilter", ("--connectors", "FrameStacking:num_frames:4+MeanStdFilter")),
    Variant("LSTM, CartPole without velocities", ("--experiment", "ppo_stateless_cartpole_lstm")),
)

Results = dict[tuple[Variant, int], list[bc.Result]]


def measure_all(variants: Sequence[Variant], repeats: int, flags: Sequence[str]) -> Results:
    """Measure all variants, interleaved, in one process each."""
    results: Results = {(variant, size): [] for variant in variants for size in SIZES}
    for repeat in range(repeats):
        for (variant, size), found in results.items():
            given = ["--num-envs", str(size), "--seed", str(repeat), *variant.flags, *flags]
            found.append(bc.run_peer(PEER, given))
            bc.log(f"[{repeat + 1}/{repeats}] {variant.name}, {size}: {found[-1]['total_us']:.1f} us")
    return results


def values(runs: Sequence[bc.Result], key: str) -> list[float]:
    return [run[key] for run in runs]


def total_us(results: Results, variant: Variant, size: int) -> float:
    return statistics.median(values(results[variant, size], "total_us"))


def whole_table(results: Results) -> str:
    rows = [
        [str(size), *(bc.spread(values(results[DEFAULT, size], key), 1) for key in WHOLE.values())] for size in SIZES
    ]
    return bc.markdown_table(["sub-environments", *WHOLE], rows)


def connector_table(results: Results, variant: Variant) -> str:
    by_size = [[run["by_connector"] for run in results[variant, size]] for size in SIZES]
    rows = []
    for pipeline, connectors in by_size[0][0].items():
        for connector in connectors:
            cells = [bc.spread([run[pipeline][connector] for run in runs], 1) for runs in by_size]
            rows.append([pipeline.replace("_", "-"), connector, *cells])
    return bc.markdown_table(["pipeline", "connector", *(f"{size} sub-environments" for size in SIZES)], rows)


def variant_table(results: Results, variants: Sequence[Variant]) -> str:
    rows = []
    for variant in variants:
        cells = [bc.spread(values(results[variant, size], "total_us"), 1) for size in SIZES]
        rows.append([variant.name, *cells, f"{growth(results, variant):.2f}"])
    return bc.markdown_table(["pipelines", *(f"{size} sub-environments" for size in SIZES), "growth"], rows)


def growth(results: Results, variant: Variant) -> float:
    small, large = (total_us(results, variant, size) for size in SIZES)
    return large / small


def verdict(results: Results) -> str:
    found, times = total_us(results, DEFAULT, SIZES[0]), growth(results, DEFAULT)
    is_met = found <= MAX_US and times < MAX_GROWTH
    return (
        f"Target {'met' if is_met else 'NOT met'}: {found:.1f} us with {SIZES[0]} (at most {MAX_US:.0f}), "
        f"{times:.2f} times that with {SIZES[1]} (less than {MAX_GROWTH:.0f})."
    )


def main() -> None:
    parser = bc.Parser(__doc__, "pipelines.json", "Other flags are passed on.")
    parser.add_number("--repeats", 3, 1)
    parser.add_number("--vector-steps", 5000, 500)
    parser.add_argument("--default-only", action="store_true", help="skip the variants")
    args, extra = parser.parse_known_args()
    variants = [DEFAULT] if args.default_only else list(VARIANTS)
    machine = bc.machine_facts([PEER])
    flags = ["--vector-steps", str(args.vector_steps), *extra]
    results = measure_all(variants, args.repeats, flags)
    raw = [{"variant": variant.name, "num_envs": size, "results": found} for (variant, size), found in results.items()]
    bc.write_json(args.out, {"machine": machine, "flags": flags, "repeats": args.repeats, "pipelines": raw})
    runs = f"{args.repeats} runs (min-max), {args.vector_steps:,} vector steps each"
    print(f"Microseconds per vector step, medians of {runs}.")
    print("`other`: drawing noise, and `action_logp` when a fragment is cut, as the share of one step.\n")
    print(whole_table(results) + "\n\n" + verdict(results) + "\n")
    print("Each connector with a separate timer, which adds a little; without `other`:\n")
    print(connector_table(results, DEFAULT) + "\n")
    if len(variants) > 1:
        print(f"All pipelines with other connectors:\n\n{variant_table(results, variants)}\n")
    print(bc.machine_text(machine))


if __name__ == "__main__":
    main()
