"""Train experiments over their seeds; `make zoo`, which then writes docs/results.md.

A run is stored in `zoo/runs.jsonl` as soon as it ends, with its curve and, of the median seed, its policy. An
interrupted `make zoo` continues: stored seeds are skipped, and a run that has not ended is resumed. When an experiment
has changed, `make zoo ZOO="--again --experiments NAME"` trains it again.
"""

from __future__ import annotations

import argparse
import functools
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from threading import Lock

from runner.zoo_runs import ENV_STEPS, RETURN, SECONDS, Experiment, ZooRun, stored_runs

POLICIES, RUNS = Path("zoo"), Path("zoo/runs.jsonl")
CURVES = Path("benchmarks/results/learning/curves")
LARGEST_POLICY = 1_000_000  # bytes
NUM_POINTS = 100  # of a curve
# Experiments with several agents have results but no policies, because a policy file holds one module.
SEVERAL_AGENTS = """
    appo_multi_agent_cartpole dqn_multi_agent_cartpole impala_multi_agent_cartpole
    ippo_investment_game ippo_speaker_listener mappo_investment_game mappo_simple_spread
    mappo_speaker_listener ppo_dqn_multi_agent_cartpole ppo_league_tictactoe
    ppo_multi_agent_cartpole ppo_multi_agent_cartpole_shared ppo_speaker_listener qmix_two_step_game
    sac_multi_agent_pendulum vdn_two_step_game
""".split()
_GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
_MINATAR = [f"{algorithm}_minatar_{game}" for algorithm in ("dqn", "ppo", "pqn") for game in _GAMES]
_CROSSQ = ["crossq_half_cheetah", "crossq_hopper", "crossq_walker2d"]
# Trained for a fixed number of env steps, as in published results.
_FIXED = """
    ppo_ant ppo_ant_tuned ppo_bipedal_walker ppo_half_cheetah ppo_half_cheetah_tuned ppo_hopper
    ppo_humanoid ppo_pusher ppo_reacher ppo_swimmer ppo_swimmer_tuned ppo_walker2d
    sac_bipedal_walker
""".split()
FIXED = [*_CROSSQ, *_MINATAR, *_FIXED]
# Trained until they reach the target of their `stop` block.
_TO_A_TARGET = """
    a2c_cartpole a2c_replay_cartpole a3c_cartpole apex_cartpole appo_cartpole
    appo_misbehaving_cartpole appo_pendulum appo_stateless_cartpole_lstm crossq_pendulum
    ddpg_pendulum dqn_cartpole dqn_cartpole_iqn dqn_lunarlander dqn_stateless_cartpole_lstm
    her_bit_flipping impala_cartpole munchausen_dqn_cartpole pg_cartpole ppo_acrobot ppo_atari_pong
    ppo_cartpole ppo_catch ppo_curriculum_goal_maze ppo_dict_cartpole ppo_inverted_pendulum
    ppo_lunarlander ppo_masked_cartpole ppo_minigrid_doorkey ppo_minigrid_empty
    ppo_minigrid_key_corridor ppo_minigrid_memory ppo_pendulum ppo_sb3_cartpole
    ppo_stateless_cartpole_lstm pqn_cartpole rainbow_cartpole sac_cartpole_discrete
    sac_lunarlander_continuous sac_pendulum td3_pendulum tqc_pendulum
""".split()
# Number of seeds: ten, or fewer if a run takes more than twenty minutes on one core.
EXPERIMENTS = {
    **dict.fromkeys((*FIXED, *SEVERAL_AGENTS, *_TO_A_TARGET), 10),
    **dict.fromkeys((*_CROSSQ, *_MINATAR, "mappo_simple_spread"), 5),
    **dict.fromkeys(("dqn_lunarlander", "sac_lunarlander_continuous"), 3),
}


class Zoo:
    """Trains seeds of experiments and stores them.

    Args:
        folder: for the run dirs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._stored, self._lock = folder, stored_runs(RUNS), Lock()
        self._read = functools.cache(Experiment.read)  # each configuration is composed once

    def missing(self, name: str, num_seeds: int, again: bool) -> list[tuple[Experiment, int]]:
        """Return the seeds of an experiment that are not stored, or all of them."""
        experiment, stored = self._read(name), self._stored.setdefault(name, {})
        return [(experiment, seed) for seed in range(num_seeds) if again or seed not in stored]

    def num_outdated(self, name: str, num_seeds: int) -> int:
        """Return how many of these seeds are stored with an older configuration."""
        digest = self._read(name).digest
        return sum(seed < num_seeds and run.configuration != digest for seed, run in self._stored.get(name, {}).items())

    def train(self, experiment: Experiment, seed: int) -> None:
        """Train one seed, and store its run, its curve and, if it is the median one so far, its policy."""
        run_dir = self._folder / experiment.name / str(seed)
        run = experiment.train(seed, run_dir, "--quiet")
        with self._lock:
            runs = self._stored[experiment.name]
            runs[seed] = run
            metric = RETURN if experiment.target is None else experiment.metric
            _write_curve(run_dir, CURVES / f"{experiment.name}-{seed}.jsonl", metric)
            if experiment.name not in SEVERAL_AGENTS and _is_in_the_middle(run, list(runs.values())):
                _keep_policy(experiment.name, run_dir)
            with RUNS.open("a", encoding="utf-8") as file:
                file.write(run.to_line())
            print(f"{experiment.name}, seed {seed}: {run.episode_return_mean:.6g} in {run.seconds:.0f} s", flush=True)


def _is_in_the_middle(run: ZooRun, runs: Sequence[ZooRun]) -> bool:
    """Return whether no other run has a return closer to the median."""
    middle = median(one.episode_return_mean for one in runs)
    return all(
        abs(run.episode_return_mean - middle) <= abs(one.episode_return_mean - middle)
        for one in runs
        if one.configuration == run.configuration
    )


def _write_curve(run_dir: Path, path: Path, metric: str) -> None:
    """Write `[env steps, return, seconds]` of at most `NUM_POINTS` iterations that have the metric."""
    lines = map(json.loads, (run_dir / "progress.jsonl").read_text(encoding="utf-8").splitlines())
    points = [
        [line[ENV_STEPS], float(f"{line[metric]:.5g}"), round(line[SECONDS], 1)]
        for line in lines
        if line.get(metric) is not None
    ]
    step = -(-len(points) // NUM_POINTS)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(point)}\n" for point in points[::-1][::step][::-1]), encoding="utf-8")


def _keep_policy(experiment: str, run_dir: Path) -> None:
    """Export the policy of a run, unless it is large."""
    policy = POLICIES / f"{experiment}.onnx"
    command = [sys.executable, "-m", "runner", "export", str(run_dir), "--force", "-o", str(policy)]
    if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode:
        print(f"{experiment}: the policy in {run_dir} was not exported", flush=True)
    elif policy.stat().st_size > LARGEST_POLICY:
        policy.unlink()


def main() -> None:
    """Train the missing runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", nargs="*", choices=EXPERIMENTS, default=list(EXPERIMENTS))
    parser.add_argument("--folder", type=Path, default=Path("outputs/zoo"))
    parser.add_argument("--again", action="store_true", help="also train stored seeds")
    parser.add_argument("--seeds", type=int, help="train at most this number of seeds of each experiment")
    parser.add_argument("--parallel", type=int, default=2, help="number of runs at a time")
    arguments = parser.parse_args()
    if arguments.seeds is not None and arguments.seeds < 1:
        parser.error(f"--seeds must be 1 or more, got {arguments.seeds}")
    zoo = Zoo(arguments.folder)
    num_seeds = {name: min(EXPERIMENTS[name], arguments.seeds or EXPERIMENTS[name]) for name in arguments.experiments}
    missing = [one for name in num_seeds for one in zoo.missing(name, num_seeds[name], arguments.again)]
    print(f"{len(missing)} runs to train", flush=True)
    num_outdated = sum(zoo.num_outdated(name, num) for name, num in num_seeds.items())
    if num_outdated and not arguments.again:
        print(f"{num_outdated} stored runs have an older configuration; --again trains all runs again", flush=True)
    with ThreadPoolExecutor(arguments.parallel) as pool:
        futures = [pool.submit(zoo.train, *one) for one in missing]
        try:
            for future in futures:
                future.result()
        except subprocess.CalledProcessError as error:
            pool.shutdown(cancel_futures=True)
            sys.exit(f"{shlex.join(error.cmd)} ended with exit code {error.returncode}")
        except BaseException:  # also Ctrl-C, which ends the runs in progress with a checkpoint
            pool.shutdown(cancel_futures=True)
            raise


if __name__ == "__main__":
    main()
