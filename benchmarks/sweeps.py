"""Cost of a sweep compared with plain runs: overhead per trial, two trials at a time, and ASHA compared with a grid."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench_common as bc

RETURN, STEPS, TRAINING = "env_runners/episode_return_mean", "num_env_steps_sampled_lifetime", "time_total_s"
NUM_TRIALS = 16
NUM_PLAIN = 3  # number of plain runs, representative for all seeds
GRID = ("algorithm.lr=1e-5,3e-5,1e-4,3e-4,1e-3,3e-3", "algorithm.num_epochs=3,6,10")
TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Trial:
    """A trial as stored in the sweep's folder; times in seconds since the start of the command."""

    number: int
    status: str
    ended_s: float
    progress: list[dict[str, Any]]

    @property
    def training_s(self) -> float:
        return float(self.progress[-1][TRAINING])

    @property
    def steps(self) -> int:
        return int(self.progress[-1][STEPS])


def run(overrides: Sequence[str], folder: Path) -> float:
    """Return the seconds of a command in `folder`."""
    with (folder / "output.txt").open("w") as output:
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "runner", *overrides],
            cwd=folder,
            env=bc.one_thread_env(),
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=TIMEOUT_S,
        )
        seconds = time.perf_counter() - start
    if done.returncode != 0:
        raise SystemExit(f"exit code {done.returncode}: {overrides}\n{(folder / 'output.txt').read_text()[-4000:]}")
    return seconds


def experiment(num_steps: int) -> tuple[str, ...]:
    """Return the experiment with a limit of steps instead of a target return."""
    return (
        "+experiment=ppo_cartpole",
        "stop.env_runners.episode_return_mean=100000",
        f"stop.num_env_steps_sampled_lifetime={num_steps}",
        "tracking.display=plain",
    )


def read_progress(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "progress.jsonl").read_text().splitlines()]


def plain_runs(num_runs: int, num_steps: int) -> tuple[list[float], list[float]]:
    """Return training seconds and total command seconds of single runs, one after the other."""
    training, whole = [], []
    for seed in range(num_runs):
        with tempfile.TemporaryDirectory(prefix="bench-sweeps-") as tmp:
            whole.append(run((*experiment(num_steps), f"seed={seed}", "hydra.run.dir=run"), Path(tmp)))
            training.append(read_progress(Path(tmp) / "run")[-1][TRAINING])
    return training, whole


def side_by_side(num_steps: int) -> list[float]:
    """Return training seconds of two simultaneous single runs, to measure the slowdown on this machine."""
    with ThreadPoolExecutor(2) as pool:
        pair = [pool.submit(plain_runs, 1, num_steps) for _ in range(2)]
        return [seconds for future in pair for seconds in future.result()[0]]


def sweep(overrides: Sequence[str]) -> tuple[float, list[Trial]]:
    """Return total command seconds, and the trials in the order in which they ended."""
    with tempfile.TemporaryDirectory(prefix="bench-sweeps-") as tmp:
        folder, began = Path(tmp) / "sweep", time.time()
        seconds = run(("-m", *overrides, f"hydra.sweep.dir={folder}"), Path(tmp))
        lines = map(json.loads, (folder / "trials.jsonl").read_text().splitlines())
        last = {line["number"]: line for line in lines}
        trials = [
            Trial(number, read["status"], read["time"] - began, read_progress(folder / str(number)))
            for number, read in last.items()
        ]
        return seconds, sorted(trials, key=lambda trial: trial.ended_s)


def steps_until(trials: Sequence[Trial], value: float) -> int | None:
    """Return the env steps of all trials, by training time, when the first trial reaches a return, or None."""
    reached: list[tuple[float, int, int]] = []
    for trial in trials:
        began_s = trial.ended_s - trial.training_s
        reached += [
            (began_s + line[TRAINING], trial.number, line[STEPS])
            for line in trial.progress
            if (line[RETURN] or float("-inf")) >= value
        ]
    if not reached:
        return None
    first_s = min(reached)[0]
    total = 0
    for trial in trials:
        began_s = trial.ended_s - trial.training_s
        total += max((line[STEPS] for line in trial.progress if began_s + line[TRAINING] <= first_s), default=0)
    return total


def measure(args: argparse.Namespace) -> dict[str, Any]:
    num_steps, grid_steps, num_trials, num_plain, grid = (
        (8_000, 8_000, 2, 1, ("algorithm.lr=1e-4,3e-3",))
        if args.quick
        else (300_000, args.grid_steps, NUM_TRIALS, NUM_PLAIN, GRID)
    )
    training, whole = plain_runs(num_plain, num_steps)
    bc.log(f"plain runs: training {bc.spread(training, 1)} s, complete command {bc.spread(whole, 1)} s")
    pair = side_by_side(num_steps)
    bc.log(f"two plain runs side by side: training {bc.spread(pair, 1)} s")
    seeds = f"seed=range({num_trials})"
    one_s, one = sweep((*experiment(num_steps), f"seed=range({num_plain})", "sweep.max_concurrent_trials=1"))
    ends = [0.0, *(trial.ended_s for trial in one)]
    overheads = [end - before - plain for before, end, plain in zip(ends, ends[1:], training, strict=False)]
    bc.log(f"one at a time: {one_s:.1f} s, first trial {overheads[0]:+.1f} s, later ones {overheads[1:]}")
    two_s, two = sweep((*experiment(num_steps), seeds, "sweep.max_concurrent_trials=2"))
    expected_s = statistics.mean(training) * num_trials / 2
    bc.log(f"{num_trials} trials, two at a time: {two_s:.1f} s, half the sum of the plain ones {expected_s:.1f} s")
    grid_s, full = sweep((*experiment(grid_steps), *grid))
    best = max(trial.progress[-1][RETURN] or float("-inf") for trial in full)
    # The same combinations in random order: a grid starts with the worst ones, so each next one would be promoted.
    asha_s, halved = sweep((*experiment(grid_steps), *grid, "sweep=asha", f"sweep.num_samples={len(full)}"))
    return {
        "num_steps": num_steps,
        "plain_training_s": training,
        "plain_whole_s": whole,
        "side_by_side_training_s": pair,
        "first_overhead_s": overheads[0],
        "later_overheads_s": overheads[1:] or overheads,
        "two_at_a_time_s": two_s,
        "two_training_s": [trial.training_s for trial in two],
        "expected_s": expected_s,
        "grid_s": grid_s,
        "grid_steps": sum(trial.steps for trial in full),
        "grid_best": best,
        "asha_s": asha_s,
        "asha_steps": sum(trial.steps for trial in halved),
        "asha_best": max(line[RETURN] or float("-inf") for trial in halved for line in trial.progress),
        "asha_steps_to_best": steps_until(halved, best),
        "asha_stopped": sum(trial.status == "stopped" for trial in halved),
        "num_grid_trials": len(full),
    }


def rows(result: dict[str, Any]) -> list[list[str]]:
    to_best = result["asha_steps_to_best"]
    share = "not reached" if to_best is None else f"{to_best / result['grid_steps']:.2f}"
    plain_extra = statistics.median(
        whole - training for whole, training in zip(result["plain_whole_s"], result["plain_training_s"], strict=True)
    )
    return [
        ["a plain run: the command without its training", f"{plain_extra:.1f} s", ""],
        [
            "two plain runs side by side: their training",
            f"{statistics.mean(result['side_by_side_training_s']) / statistics.mean(result['plain_training_s']):.2f} "
            "times one alone",
            "",
        ],
        ["first trial of a sweep, less its plain training", f"{result['first_overhead_s']:.1f} s", ""],
        ["a later trial, less its plain training", bc.spread(result["later_overheads_s"], 1) + " s", "below 3 s"],
        [
            f"{len(result['two_training_s'])} trials, two at a time: {result['two_at_a_time_s']:.0f} s",
            f"{result['two_at_a_time_s'] / result['expected_s']:.2f} of half their plain training "
            f"({result['expected_s']:.0f} s)",
            "at most 1.3",
        ],
        [
            f"grid of {result['num_grid_trials']}: best return {result['grid_best']:.1f}",
            f"{result['grid_steps']:,} env steps, {result['grid_s']:.0f} s",
            "",
        ],
        [
            f"the same grid with ASHA: best return {result['asha_best']:.1f}, {result['asha_stopped']} stopped",
            f"{result['asha_steps']:,} env steps, {result['asha_s']:.0f} s",
            "",
        ],
        ["share of the grid's env steps until ASHA reaches the grid's best return", share, "at most 0.5"],
    ]


def main() -> None:
    parser = bc.Parser(__doc__, "sweeps.json")
    parser.add_argument("--grid-steps", type=int, default=100_000, help="env steps per trial of the grid")
    args = parser.parse_args()
    result = measure(args)
    machine = bc.machine_facts([bc.Peer("ours", "ours.py")])
    bc.write_json(args.out, {"machine": machine, **result})
    print(bc.markdown_table(["", "measured", "bar"], rows(result)) + "\n\n" + bc.machine_text(machine))


if __name__ == "__main__":
    main()
