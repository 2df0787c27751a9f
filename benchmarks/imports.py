"""Do experiments written by `python -m runner import sb3-zoo` learn as Stable-Baselines3 does with the same entry?

Both train an entry of benchmarks/peers/zoo with the same seeds, and greedy episodes are evaluated afterwards.

    python benchmarks/imports.py              # train; skip seeds in the results file
    .peers/rliable/bin/python benchmarks/imports.py --table      # inter-quartile means, probability of improvement
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bench_common as bc
from learning_table import probability_of_improvement, rliable_interval

ENTRIES = (("ppo", "CartPole-v1"), ("ppo", "Acrobot-v1"), ("dqn", "CartPole-v1"), ("sac", "Pendulum-v1"))
NUM_EPISODES = 50
RESULTS = bc.ROOT / "benchmarks" / "results" / "learning" / "imports.jsonl"


def run_sb3(algorithm: str, env: str, seed: int, python: str) -> bc.Result:
    """Train the entry with Stable-Baselines3."""
    flags = ["--algorithm", algorithm, "--env", env, "--seed", str(seed), "--num-episodes", str(NUM_EPISODES)]
    peer = bc.Peer("sb3", "sb3_zoo.py", python=python)
    return bc.run_peer(peer, [*flags, "--entry", json.dumps(read_entry(algorithm, env))])


def read_entry(algorithm: str, env: str) -> Mapping[str, Any]:
    """Return the entry, with texts that are calls of `dict` replaced by their values."""
    from runner.config.yaml_files import read_yaml
    from runner.importing.imported import read_python

    entry = dict(read_yaml(file_of(algorithm))[env])
    if "policy_kwargs" in entry:
        entry["policy_kwargs"] = read_python(entry["policy_kwargs"], ("dict",))
    return entry


def file_of(algorithm: str) -> Path:
    return bc.PEERS_DIR / "zoo" / f"{algorithm}.yml"


def run_ours(algorithm: str, env: str, seed: int) -> bc.Result:
    """Import the entry, train it from the command line, and evaluate the last checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        experiment, run_dir = Path(folder) / "conf" / "experiment" / "entry.yaml", Path(folder) / "run"
        runner("import", "sb3-zoo", str(file_of(algorithm)), "--env", env, "--output", str(experiment))
        found = ("--config-dir", str(experiment.parents[1]), "+experiment=entry", f"seed={seed}")
        runner(*found, "tracking=none", "evaluation=none", f"hydra.run.dir={run_dir}")
        runner("evaluate", str(run_dir), f"evaluation.evaluation_duration={NUM_EPISODES}")
        evaluation = json.loads((run_dir / "evaluations.jsonl").read_text().splitlines()[-1])
        trained = json.loads((run_dir / "progress.jsonl").read_text().splitlines()[-1])
    return {
        "peer": bc.OURS,
        "return": evaluation["episode_return_mean"],
        "num_env_steps": trained["num_env_steps_sampled_lifetime"],
    }


def runner(*arguments: str) -> None:
    """Run `python -m runner`."""
    command = [sys.executable, "-m", "runner", *arguments]
    environment = {**bc.one_thread_env(), "PYTHONPATH": str(bc.ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def train(args: argparse.Namespace) -> None:
    """Append the results of seeds that are not in the file yet."""
    results = read_results(args.out)
    for seed in args.seeds:
        for algorithm, env in ENTRIES:
            for system in (bc.OURS, "sb3"):
                key = {"algorithm": algorithm, "env": env, "seed": seed, "peer": system}
                if any(key.items() <= result.items() for result in results):
                    continue
                found = run_ours(algorithm, env, seed) if system == bc.OURS else run_sb3(algorithm, env, seed, args.sb3)
                result = {**key, "return": found["return"], "num_env_steps": found["num_env_steps"]}
                bc.log(json.dumps(result))
                with args.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + os.linesep)


def read_results(path: Path) -> list[bc.Result]:
    """Return the existing results."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(results: list[bc.Result]) -> str:
    """Return one row per entry; an interval that contains 0.5 shows no difference."""
    rows = []
    for algorithm, env in ENTRIES:
        of_entry = [result for result in results if (result["algorithm"], result["env"]) == (algorithm, env)]
        returns = [[run["return"] for run in of_entry if run["peer"] == system] for system in (bc.OURS, "sb3")]
        iqms = ["{:.1f} [{:.1f}, {:.1f}]".format(*rliable_interval(values)) for values in returns]
        better = "{:.2f} [{:.2f}, {:.2f}]".format(*probability_of_improvement(*returns))
        rows.append([f"`{algorithm}` {env}", f"{len(returns[0])} and {len(returns[1])}", *iqms, better])
    head = ["entry", "runs", "return, imported", "return, Stable-Baselines3", "probability that ours is better"]
    return bc.markdown_table(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[*range(10)])
    parser.add_argument("--sb3", default=bc.python_of("sb3"), help="Python interpreter of SB3")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print the table of the existing results")
    args = parser.parse_args()
    if args.table:
        print(table(read_results(args.out)))
    else:
        train(args)


if __name__ == "__main__":
    main()
