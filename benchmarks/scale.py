"""Find the bottleneck with up to 1,000 env runners and 16 learners: measure costs here, then simulate the plan.

`measure` writes benchmarks/results/scale.jsonl: one line for the machine and one per cost. `simulate` reads it and
prints the tables of benchmarks/results/scale.md. Flags set the properties of env steps, networks and GPUs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import bench_common as bc
import numpy as np
import scale_costs
from scale_costs import CARTPOLE, FRAGMENT, IMAGES, NUM_RUNNERS, WEIGHTS_BYTES, Cost, value_of
from scale_simulation import Costs, Outcome, Setting, simulate

PAGE_COSTS = bc.ROOT / "benchmarks" / "results" / "scale.jsonl"
NUM_LEARNERS = (1, 4, 16)
_PER_LEARNER = 2048  # env steps per learner in a train batch
_HEADER = ["env runners", "learners", "env steps/s", "driver", "learners busy", "env runners busy", "network"]
_HEADER += ["lag (updates): mean, largest", "driver's node (MB/s)", "limit"]


def costs_of(kind: str, costs: list[Cost], row_s: float | None = None) -> Costs:
    """Return the costs of a kind of environment and module; `row_s` replaces the measured value."""
    per_step = value_of(costs, "bytes_per_env_step", kind)
    weights_bytes = value_of(costs, "weights_bytes", kind)
    of_images, of_vectors = (
        value_of(costs, "collect_s", one) + value_of(costs, "join_s", one) for one in (IMAGES, CARTPOLE)
    )
    large, small = (value_of(costs, "bytes_per_env_step", one) for one in (IMAGES, CARTPOLE))
    least, most = min(NUM_RUNNERS), max(NUM_RUNNERS)
    few_s, many_s = (value_of(costs, "look_s", f"{number:,} env runners") for number in (least, most))
    look_per_runner_s = max(0.0, many_s - few_s) / (most - least)
    return Costs(
        ask_s=value_of(costs, "ask_s", kind),
        collect_s=of_vectors,
        look_s=max(0.0, few_s - least * look_per_runner_s),
        look_per_runner_s=look_per_runner_s,
        per_runner_s=value_of(costs, "bookkeeping_s", f"{most:,}") / most,
        byte_s=max(0.0, of_images - of_vectors) / (FRAGMENT * (large - small)),
        put_s=_of_size(costs, "put_s", weights_bytes),
        take_s=_of_size(costs, "take_s", weights_bytes),
        row_s=value_of(costs, "row_s", kind) if row_s is None else row_s,
        update_s=value_of(costs, "update_s", kind if row_s is None else CARTPOLE),
        bytes_per_env_step=per_step,
        weights_bytes=weights_bytes,
    )


def _of_size(costs: list[Cost], name: str, size: float) -> float:
    seconds = [value_of(costs, name, f"{one / 1e6:g} MB") for one in WEIGHTS_BYTES]
    return float(np.interp(size, WEIGHTS_BYTES, seconds))


def row_of(setting: Setting, outcome: Outcome) -> list[str]:
    """Return the cells of one simulated run."""
    shares = (outcome.driver, outcome.learners, outcome.runners, outcome.network)
    cells = [f"{setting.num_runners:,}", str(setting.num_learners), f"{outcome.env_steps_per_s:,.0f}"]
    cells += [f"{100 * share:.0f} %" for share in shares]
    return [*cells, f"{outcome.mean_lag:.1f}, {outcome.max_lag}", f"{outcome.bytes_per_s / 1e6:,.1f}", outcome.binds]


def setting_of(num_runners: int, num_learners: int, args: argparse.Namespace) -> Setting:
    """Return a run with the env steps and the network of the flags."""
    return Setting(
        num_runners,
        num_learners,
        step_s=args.env_step_ms / 1e3,
        sigma=args.sigma,
        batch=_PER_LEARNER * num_learners,
        bytes_per_s=args.gbit_per_s * 1e9 / 8,
    )


def table_of_sizes(costs: Costs, args: argparse.Namespace) -> str:
    """Return the table over numbers of env runners and learners."""
    settings = [setting_of(runners, learners, args) for runners in NUM_RUNNERS for learners in NUM_LEARNERS]
    return bc.markdown_table(_HEADER, [row_of(one, simulate(one, costs, args.samples)) for one in settings])


def variants(setting: Setting, costs: Costs) -> Mapping[str, tuple[Setting, Costs]]:
    """Return name of a change -> a run that differs only in this change."""
    quarter = replace(costs, bytes_per_env_step=costs.bytes_per_env_step / 4)
    longer = replace(setting, fragment=4 * setting.fragment)
    vector = replace(setting, fragment=8 * setting.fragment)
    return {
        "none": (setting, costs),
        "rollout_fragment_length 400": (longer, costs),
        "num_envs_per_env_runner 8, fragments of 100 each": (vector, costs),
        "num_async 1": (replace(setting, num_async=1), costs),
        "num_async 4": (replace(setting, num_async=4), costs),
        "max_weights_lag 4": (replace(setting, max_weights_lag=4), costs),
        "a quarter of the bytes": (setting, quarter),
        "a quarter of the bytes, rollout_fragment_length 400": (longer, quarter),
    }


def table_of_variants(costs: Costs, args: argparse.Namespace) -> str:
    """Return the table over settings, with the largest numbers of env runners and learners."""
    setting = setting_of(max(NUM_RUNNERS), max(NUM_LEARNERS), args)
    rows = [
        [name, *row_of(one, simulate(one, its_costs, args.samples))[2:]]
        for name, (one, its_costs) in variants(setting, costs).items()
    ]
    return bc.markdown_table(["change", *_HEADER[2:]], rows)


def table_of_costs(costs: Sequence[Cost]) -> str:
    """Return the table of measured costs."""
    shown = [(one, f"{1e6 * one.value:,.1f} us" if one.unit == "s" else f"{one.value:,.0f} bytes") for one in costs]
    return bc.markdown_table(["cost", "of", "measured"], [[f"`{one.name}`", one.of, text] for one, text in shown])


def write_costs(path: Path) -> None:
    """Measure, and write one line for the machine and one per cost."""
    machine = {**bc.machine_facts([]), "load": os.getloadavg()[0]}
    lines = [machine, *(dataclasses.asdict(cost) for cost in scale_costs.measure())]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def read_costs(path: Path = PAGE_COSTS) -> list[Cost]:
    """Return the costs of a file of `write_costs`."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return [Cost(**json.loads(line)) for line in lines]


def main() -> None:
    """Measure, or simulate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "simulate"))
    parser.add_argument("--costs", type=Path, default=PAGE_COSTS)
    parser.add_argument("--env-step-ms", type=float, default=5.0)
    parser.add_argument("--sigma", type=float, default=1.0, help="sigma of the logarithm of an env step's time")
    parser.add_argument("--gbit-per-s", type=float, default=10.0, help="network of each node")
    parser.add_argument(
        "--gpu-rows-per-s", type=float, default=20000.0, help="rows per second of a learner with images (an assumption)"
    )
    parser.add_argument("--samples", type=int, default=8000, help="samples per simulated run")
    args = parser.parse_args()
    if args.what == "measure":
        os.environ["PYTHONPATH"] = os.pathsep.join([str(bc.ROOT), str(bc.ROOT / "benchmarks")])  # for Ray's workers
        write_costs(args.costs)
        return
    costs = read_costs(args.costs)
    print(table_of_costs(costs))
    for kind, row_s in ((CARTPOLE, None), (IMAGES, 1 / args.gpu_rows_per_s)):
        of_kind = costs_of(kind, costs, row_s)
        print(f"\n## {kind}\n\n{table_of_sizes(of_kind, args)}\n\n{table_of_variants(of_kind, args)}")


if __name__ == "__main__":
    main()
