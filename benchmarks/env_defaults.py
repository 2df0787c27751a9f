"""Train environments with the settings of `env_defaults`, and write the table of docs/reference/environments.md.

A run is appended to `benchmarks/results/env_defaults.jsonl` as soon as it ends; stored seeds are skipped. Each run gets
`env=ID`, `algorithm=NAME`, a number of env steps and a seed, and nothing else; its score is the mean return of greedy
episodes at the end.

    python benchmarks/env_defaults.py --seeds 2 --envs Acrobot-v1 Taxi-v4
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

RESULTS, PAGE = Path("benchmarks/results/env_defaults.jsonl"), Path("docs/reference/environments.md")
BEGIN, END = "<!-- table of env_defaults: begin -->", "<!-- table of env_defaults: end -->"
RETURN, STEPS = "evaluation/env_runners/episode_return_mean", "num_env_steps_sampled_lifetime"
SHARE = 0.9


@dataclass(frozen=True)
class Case:
    """An environment and its budget.

    Attributes:
        env: Gymnasium id.
        algorithm: option of `algorithm`.
        steps: env steps of training.
        random, best: mean returns of a random policy and of an optimal or published one.
        source: source of `best`.
        episodes: greedy episodes at the end.
    """

    env: str
    algorithm: str
    steps: int
    random: float
    best: float
    source: str
    episodes: int = 100

    @property
    def target(self) -> float:
        """Return to reach: 90 % of `best`, or of the way to it from `random` if `best` is below 0."""
        start = self.random if self.best < 0 else 0.0
        return start + SHARE * (self.best - start)


ZOO = "RL Zoo"
CASES = (
    Case("Acrobot-v1", "ppo", 150_000, -486.5, -73.5, f"PPO in {ZOO}"),
    Case("Blackjack-v1", "ppo", 200_000, -0.401, -0.043, "dynamic programming", 5000),
    Case("CliffWalking-v1", "dqn", 40_000, -1972, -13, "shortest path", 10),
    Case("FrozenLake-v1", "ppo", 150_000, 0.014, 0.744, "value iteration", 500),
    Case("MiniGrid-Empty-8x8-v0", "ppo", 150_000, 0.043, 0.961, "shortest path"),
    Case("InvertedDoublePendulum-v5", "ppo", 300_000, 60, 9360, "upright for 1000 steps"),
    Case("MountainCar-v0", "ppo", 500_000, -200, -100.8, f"DQN in {ZOO}"),
    Case("MountainCarContinuous-v0", "ppo", 150_000, -33.4, 94.7, f"SAC in {ZOO}"),
    Case("Reacher-v5", "ppo", 300_000, -43.6, -3.75, "Gymnasium's threshold"),
    Case("Swimmer-v5", "ppo", 1_000_000, -2.3, 281.6, f"PPO in {ZOO}"),
    Case("Taxi-v4", "dqn", 100_000, -785.5, 7.93, "value iteration", 300),
)


def train(case: Case, seed: int) -> dict[str, object]:
    """Train one seed, and return its row."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder, "run")
        overrides = [f"env={case.env}", f"algorithm={case.algorithm}", f"seed={seed}", f"stop.{STEPS}={case.steps}"]
        overrides += ["evaluation=periodic", "evaluation.evaluation_interval=100000", "tracking=none"]
        overrides += [f"evaluation.evaluation_duration={case.episodes}", f"hydra.run.dir={run_dir}"]
        command = [sys.executable, "-m", "runner", "train", "--quiet", *overrides]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        result = json.loads((run_dir / "result.json").read_text())
    row = {"env": case.env, "algorithm": case.algorithm, "seed": seed, "env_steps": result[STEPS]}
    return {**row, "return": round(result[RETURN], 3), "seconds": round(result["time_total_s"])}


def read_rows() -> list[dict[str, object]]:
    """Return the stored rows."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def rows_of(case: Case) -> list[dict[str, object]]:
    """Return the stored rows of a case, by seed."""
    keys = ("env", "algorithm")
    rows = [row for row in read_rows() if all(row[key] == getattr(case, key) for key in keys)]
    return sorted(rows, key=lambda row: int(str(row["seed"])))


def table() -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| environment | algorithm | env steps | returns of the seeds | mean | target | best known return |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for case in CASES:
        returns = [float(str(row["return"])) for row in rows_of(case)]
        if returns:
            reached = "✓" if mean(returns) >= case.target else "✗"
            shown = ", ".join(f"{value:.4g}" for value in returns)
            yield (
                f"| `{case.env}` | `{case.algorithm}` | {case.steps:,} | {shown} | {mean(returns):.4g} | "
                f"{case.target:.4g} {reached} | {case.best:.4g} ({case.source}) |"
            )


def write_page() -> None:
    """Write the table between its two comments."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text("\n".join([before + BEGIN, *table(), END + after]), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the missing seeds, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2, help="seeds per environment; 0 writes the table only")
    parser.add_argument("--envs", nargs="*", help="ids; default: all of them")
    given = parser.parse_args(arguments)
    for case in CASES:
        stored = {row["seed"] for row in rows_of(case)}
        for seed in range(given.seeds if given.envs is None or case.env in given.envs else 0):
            if seed not in stored:
                row = train(case, seed)
                print(row, flush=True)
                with RESULTS.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    write_page()


if __name__ == "__main__":
    main()
