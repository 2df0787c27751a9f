"""The cost of many past opponents: env steps/s of tic-tac-toe against 50 snapshots, one snapshot, and itself only.

It trains some iterations of each in turn, several times, in this process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from runner.experiment.trainer import Trainer

_EXPERIMENT = "ppo_league_tictactoe"
_OVERRIDES = (
    "evaluation.evaluation_interval=null",
    "~stop.evaluation.league.perfect.draw_rate",
    "league.snapshot_every=1",
    "league.prioritised_power=0",
)
# The same opponents in the same share of episodes; only their number differs.
_HALF = "league.opponents={latest: 0.5, uniform: 0.5, prioritised: 0}"
_ITSELF = "league.opponents={latest: 1, uniform: 0, prioritised: 0}"


def _trainer(num_snapshots: int) -> Trainer:
    """Return a trainer whose env runners draw from the newest `num_snapshots` existing snapshots; 0 for self-play."""
    opponents = [_HALF, f"league.max_snapshots={num_snapshots}"] if num_snapshots else [_ITSELF]
    trainer = Trainer.from_experiment(_EXPERIMENT, [*_OVERRIDES, *opponents])
    for _ in range(num_snapshots + 2):
        trainer.train()
    return trainer


def _env_steps_per_s(trainer: Trainer, iterations: int) -> float:
    started, before = time.perf_counter(), trainer.last_result["num_env_steps_sampled_lifetime"]
    for _ in range(iterations):
        trainer.train()
    return (trainer.last_result["num_env_steps_sampled_lifetime"] - before) / (time.perf_counter() - started)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the medians and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshots", type=int, default=50)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="smoke test; the numbers are meaningless")
    options = parser.parse_args(arguments)
    many, iterations, repeats = (3, 1, 1) if options.quick else (options.snapshots, options.iterations, options.repeats)
    speeds: dict[int, list[float]] = {0: [], 1: [], many: []}
    trainers = {number: _trainer(number) for number in speeds}
    for _ in range(repeats):
        for number, trainer in trainers.items():
            speeds[number].append(_env_steps_per_s(trainer, iterations))
    medians = {number: statistics.median(values) for number, values in speeds.items()}
    for number, median in medians.items():
        name = f"half of the episodes against {number} snapshots" if number else "against itself only"
        print(f"{name:45} {median:8,.0f} env steps/s, {medians[0] / median:.2f} times the cost of itself only")
    print(f"{many} snapshots cost {medians[1] / medians[many]:.2f} times the cost of one")


if __name__ == "__main__":
    main()
