"""Speed and return of runner, a bare torch loop and Stable-Baselines3: PPO and SAC on MuJoCo, and DQN on MinAtar.

Each system trains three seeds with the hyperparameters of runner's experiment, and then plays 20 episodes with the
deterministic policy. Each run is a separate process, one at a time, and one line of `benchmarks/results/suites.jsonl`.
Systems are interleaved, so that they share the conditions of the machine. An interrupted benchmark continues: stored
runs are skipped. The tables are in `benchmarks/results/suites.md`.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench_common as bc
from peers.suite_cli import DQN, PPO, SAC, Task

from runner.config.compose import compose_experiment
from runner.zoo_runs import ENV_STEPS

RESULTS = bc.ROOT / "benchmarks" / "results"
ROWS, PAGE = RESULTS / "suites.jsonl", RESULTS / "suites.md"
BARE, SB3 = "bare", "sb3"
SYSTEMS = (bc.OURS, BARE, SB3)
TITLES = {bc.OURS: "runner", BARE: "bare torch loop", SB3: "Stable-Baselines3"}
TIMES = ("train_s", "cpu_s")
NUM_EPISODES = 20
TIMEOUT_S = 6 * 3600.0
# Settings of the `algorithm` block that the other systems read.
SETTINGS = {
    PPO: (
        *("lr", "gamma", "lambda_", "clip_param", "vf_loss_coeff", "entropy_coeff", "grad_clip"),
        *("train_batch_size_per_learner", "minibatch_size", "num_epochs"),
    ),
    SAC: (
        *("critic_lr", "gamma", "tau", "train_batch_size_per_learner", "training_intensity", "replay_capacity"),
        "num_steps_sampled_before_learning_starts",
    ),
    DQN: (
        *("lr", "gamma", "grad_clip", "n_step", "epsilon", "target_network_update_freq", "replay_capacity"),
        *("train_batch_size_per_learner", "training_intensity", "num_steps_sampled_before_learning_starts"),
    ),
}


@dataclass(frozen=True)
class Suite:
    """An experiment of runner, and how the other systems know it.

    Attributes:
        env: id of a Gymnasium environment, or the name of a MinAtar game.
        num_env_steps: default of `--env-steps`.
        overrides: overrides of the experiment, for all systems.
    """

    experiment: str
    title: str
    algorithm: str
    env: str
    num_env_steps: int
    overrides: tuple[str, ...] = ()

    def task(self, seed: int, num_env_steps: int) -> dict[str, Any]:
        """Return the fields of `Task`: the values of the experiment's configuration."""
        values = compose_experiment([f"experiment={self.experiment}", *self.overrides]).values
        algorithm, targets = values["algorithm"], [name for name in values["stop"] if name != ENV_STEPS]
        task = Task(
            experiment=self.experiment,
            algorithm=self.algorithm,
            env=self.env,
            seed=seed,
            num_env_steps=num_env_steps,
            num_episodes=NUM_EPISODES,
            num_envs=values["env_runners"]["num_envs_per_env_runner"],
            settings={name: algorithm[name] for name in SETTINGS[self.algorithm]},
            hiddens=values["module"]["fcnet_hiddens"],
            overrides=[*self.overrides, *(f"~stop.{name}" for name in targets)],
        )
        return dataclasses.asdict(task)


SUITES = (
    Suite("ppo_half_cheetah", "PPO on HalfCheetah-v5", PPO, "HalfCheetah-v5", 1_000_000),
    Suite("ppo_hopper", "PPO on Hopper-v5", PPO, "Hopper-v5", 1_000_000),
    Suite("sac_hopper", "SAC on Hopper-v5", SAC, "Hopper-v5", 100_000),
    # SB3 does not support double Q-learning.
    Suite(
        "dqn_minatar_breakout",
        "DQN on MinAtar Breakout",
        DQN,
        "breakout",
        300_000,
        ("env=minatar", "algorithm.double_q=false", "algorithm.epsilon=[[0,1.0],[100000,0.02]]"),
    ),
)


@dataclass(frozen=True)
class Run:
    """A run to measure."""

    suite: Suite
    system: str
    seed: int
    num_env_steps: int

    @property
    def key(self) -> tuple[str, str, int, int]:
        """Return the values that identify a run."""
        return self.suite.experiment, self.system, self.seed, self.num_env_steps


Row = Mapping[str, Any]


def key_of(row: Row) -> tuple[str, str, int, int]:
    """Return the values that identify the run of a stored row."""
    return row["experiment"], row["system"], row["seed"], row["max_env_steps"]


def runs_of(
    suites: Sequence[Suite], systems: Sequence[str], num_seeds: int, env_steps: Mapping[str, int]
) -> Iterator[Run]:
    """Yield the runs, interleaved: all systems of an experiment before the next one, and all before the next seed."""
    for seed in range(num_seeds):
        for suite in suites:
            for system in systems:
                yield Run(suite, system, seed, env_steps.get(suite.experiment, suite.num_env_steps))


def env_steps_of(texts: Sequence[str]) -> dict[str, int]:
    """Return experiment -> env steps from `N` for all experiments, or `experiment=N`.

    Raises:
        SystemExit: an experiment is unknown.
    """
    names, found = [suite.experiment for suite in SUITES], {}
    for text in texts:
        name, _, number = text.rpartition("=")
        if name and name not in names:
            raise SystemExit(f"--env-steps: unknown experiment {name} (known: {', '.join(names)})")
        found |= dict.fromkeys([name] if name else names, int(float(number)))
    return found


def read_rows(path: Path) -> dict[tuple[str, str, int, int], Row]:
    """Return the newest row of each run."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {key_of(row): row for row in map(json.loads, lines)}


class Machine:
    """Runs systems on this machine.

    Args:
        python_sb3: interpreter with Stable-Baselines3.
    """

    def __init__(self, python_sb3: str) -> None:
        self._python_sb3 = python_sb3
        self._versions: dict[str, dict[str, str]] = {}
        facts = bc.machine_facts([])
        self._name = f"{facts['cores']} cores, {facts['cpu']}"

    def measure(self, run: Run) -> dict[str, Any]:
        """Train and evaluate in another process, and return the row."""
        script = {bc.OURS: "ours", BARE: f"bare_{run.suite.algorithm}", SB3: "sb3"}[run.system]
        python = self._python_sb3 if run.system == SB3 else sys.executable
        peer = bc.Peer(run.system, f"suite_{script}.py", python=python)
        task = json.dumps(run.suite.task(run.seed, run.num_env_steps))
        load = os.getloadavg()[0]
        result = bc.run_peer(peer, ["--task", task], timeout_s=TIMEOUT_S)
        if run.system not in self._versions:
            self._versions[run.system] = bc.versions(peer)
        return {
            "experiment": run.suite.experiment,
            "system": run.system,
            "seed": run.seed,
            "max_env_steps": run.num_env_steps,
            **{name: _short(value) for name, value in result.items() if name != "peer"},
            "machine": self._name,
            "load": _short(load),  # before the run
            "versions": self._versions[run.system],
            "date": datetime.date.today().isoformat(),
        }


def _short(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.6g}")


def page_of(rows: Sequence[Row]) -> str:
    """Return the page: a table for each experiment and number of env steps."""
    sections = [INTRODUCTION]
    algorithms: dict[str, None] = {}
    for suite in SUITES:
        of_suite = [row for row in rows if row["experiment"] == suite.experiment]
        algorithms |= dict.fromkeys([suite.algorithm] if of_suite else [])
        for num_env_steps in sorted({row["max_env_steps"] for row in of_suite}):
            of_size = [row for row in of_suite if row["max_env_steps"] == num_env_steps]
            sections.append(
                f"## {suite.title}, {num_env_steps:,} env steps\n\n{caption_of(of_size)}\n\n{table(of_size)}\n"
            )
    differences = "".join(DIFFERENCES[algorithm] for algorithm in algorithms)
    return "\n".join([*sections, f"## Differences between the systems\n\n{differences}"])


def caption_of(rows: Sequence[Row]) -> str:
    """Return the experiment, the machines and the dates of rows."""
    dates = sorted({row["date"] for row in rows})
    span = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"`{rows[0]['experiment']}`, {'; '.join(sorted({row['machine'] for row in rows}))}, {span}."


def table(rows: Sequence[Row]) -> str:
    """Return one row for each system."""
    found: dict[str, list[Row]] = {system: [] for system in SYSTEMS}
    for row in rows:
        found[row["system"]].append(row)
    ours = [row["steps_per_s"] for row in found[bc.OURS]]
    cells = []
    for system, of_system in found.items():
        if not of_system:
            continue
        speeds, returns = ([row[name] for row in of_system] for name in ("steps_per_s", "episode_return_mean"))
        ratio = "" if system == bc.OURS else bc.ratio(ours, speeds)
        seconds, cpu_seconds = (f"{statistics.median(row[name] for row in of_system):,.0f}" for name in TIMES)
        digits = 1 if max(map(abs, returns)) < 100 else 0
        cells.append(
            [
                *(TITLES[system], bc.spread(speeds), ratio, seconds, cpu_seconds),
                *(bc.spread(returns, digits), str(len(of_system))),
            ]
        )
    return bc.markdown_table(
        ["system", "env steps/s", "runner/system", "seconds", "CPU seconds", "return", "seeds"], cells
    )


INTRODUCTION = f"""\
# The same training in runner, a bare torch loop and Stable-Baselines3

All systems train with the hyperparameters of runner's experiment, on one core, one run at a time. The return is the
mean of {NUM_EPISODES} episodes of the deterministic policy after training. Cells show the median over seeds, with the
smallest and largest value in brackets. Ratios above 1 mean that runner is faster. Times include the compilation of
runner's updates, except for the CPU time of the compiler's processes. Repeat the measurements with `make suites`.
"""
# Between the systems.
DIFFERENCES = {
    PPO: "- **PPO.** The others start with orthogonal weights. runner normalises advantages per batch, the others per "
    "minibatch.\n",
    SAC: "- **SAC.** In the 10,000 steps before learning, runner acts with its initial policy, the others with random "
    "actions.\n",
    DQN: "- **DQN.** Without double Q-learning, which Stable-Baselines3 does not support.\n",
}


def main() -> None:
    """Measure the missing runs, and write the page."""
    names = [suite.experiment for suite in SUITES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", nargs="*", choices=names, default=names)
    parser.add_argument("--systems", nargs="*", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument(
        "--env-steps", nargs="*", default=[], metavar="N", help="N for all experiments, or experiment=N for one"
    )
    parser.add_argument("--again", action="store_true", help="also measure stored runs")
    parser.add_argument("--python-sb3", default=bc.python_of("sb3"))
    parser.add_argument("--rows", type=Path, default=ROWS, help="file with a line for each run")
    parser.add_argument("--page", type=Path, default=PAGE, help="file for the tables")
    args = parser.parse_args()
    suites = [suite for suite in SUITES if suite.experiment in args.experiments]
    stored, machine = read_rows(args.rows), Machine(args.python_sb3)
    runs = [
        run
        for run in runs_of(suites, args.systems, args.seeds, env_steps_of(args.env_steps))
        if args.again or run.key not in stored
    ]
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    for number, run in enumerate(runs, 1):
        row = machine.measure(run)
        with args.rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        name = f"[{number}/{len(runs)}] {row['experiment']}, {row['system']}, seed {row['seed']}"
        bc.log(f"{name}: {row['steps_per_s']:,.0f} env steps/s, return {row['episode_return_mean']:,.5g}")
    args.page.write_text(page_of(list(read_rows(args.rows).values())), encoding="utf-8")


if __name__ == "__main__":
    main()
