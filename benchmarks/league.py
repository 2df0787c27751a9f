"""What many opponents of the past cost: env steps a second of tic-tac-toe against 50 snapshots, and against one.

`python benchmarks/league.py` trains so many iterations of each by turns, several times, in this process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from runner.experiment.trainer import Trainer

_EXPERIMENT = "ppo_league_tictactoe"
_OVERRIDES = ("evaluation.evaluation_interval=null", "league.snapshot_every=1", "league.prioritised_power=0")
# The same opponents in the same share of episodes; only how many of them there are differs.
_MANY = "league.opponents={latest: 0.5, uniform: 0.5, prioritised: 0}"


def _trainer(num_snapshots: int) -> Trainer:
    """Return a trainer whose env runners draw from the newest so many snapshots, which all have been made."""
    trainer = Trainer.from_experiment(_EXPERIMENT, [*_OVERRIDES, _MANY, f"league.max_snapshots={num_snapshots}"])
    for _ in range(num_snapshots + 2):
        trainer.train()
    return trainer


def _env_steps_per_s(trainer: Trainer, iterations: int) -> float:
    started, before = time.perf_counter(), trainer.last_result["num_env_steps_sampled_lifetime"]
    for _ in range(iterations):
        trainer.train()
    return (trainer.last_result["num_env_steps_sampled_lifetime"] - before) / (time.perf_counter() - started)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--snapshots", type=int, default=50)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    speeds: dict[int, list[float]] = {1: [], options.snapshots: []}
    trainers = {number: _trainer(number) for number in speeds}
    for _ in range(options.repeats):
        for number, trainer in trainers.items():
            speeds[number].append(_env_steps_per_s(trainer, options.iterations))
    medians = {number: statistics.median(values) for number, values in speeds.items()}
    for number, median in medians.items():
        print(f"{number:3d} snapshots  {median:8,.0f} env steps/s")
    print(f"cost of {options.snapshots} snapshots: {medians[1] / medians[options.snapshots]:.2f} times one's")


if __name__ == "__main__":
    main()
