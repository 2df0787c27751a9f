"""Train experiments over their seeds and keep a policy of each; `make zoo`, which then writes docs/results.md.

Each experiment is a sweep over seeds in `outputs/zoo`. An interrupted sweep continues with the missing seeds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bench_common as bc
from learning_table import ZOO, Run

POLICIES = Path("zoo")
COMMAND = (sys.executable, "-m", "runner")
LARGEST_POLICY = 1_000_000  # bytes
STEPS = "num_env_steps_sampled_lifetime"
# Experiments with several agents have results but no policies, because a policy file holds one module.
SEVERAL_AGENTS = {
    **dict.fromkeys(("appo_multi_agent_cartpole", "dqn_multi_agent_cartpole", "impala_multi_agent_cartpole"), 10),
    **dict.fromkeys(("ippo_investment_game", "ippo_speaker_listener", "mappo_investment_game"), 10),
    **dict.fromkeys(("mappo_speaker_listener", "ppo_dqn_multi_agent_cartpole", "ppo_league_tictactoe"), 10),
    **dict.fromkeys(("ppo_multi_agent_cartpole", "ppo_multi_agent_cartpole_shared", "ppo_speaker_listener"), 10),
    **dict.fromkeys(("qmix_two_step_game", "sac_multi_agent_pendulum", "vdn_two_step_game"), 10),
}
# Number of seeds: ten, or three if a run takes more than five minutes on two cores.
EXPERIMENTS = {
    **SEVERAL_AGENTS,
    **dict.fromkeys(("a2c_cartpole", "dqn_cartpole", "pg_cartpole", "ppo_acrobot", "ppo_cartpole"), 10),
    **dict.fromkeys(("ppo_catch", "ppo_inverted_pendulum", "ppo_lunarlander", "ppo_minigrid_empty"), 10),
    **dict.fromkeys(("ppo_pendulum", "ppo_sb3_cartpole", "rainbow_cartpole", "sac_cartpole_discrete"), 10),
    **dict.fromkeys(("ddpg_pendulum", "sac_pendulum", "td3_pendulum", "tqc_pendulum"), 10),
    **dict.fromkeys(("a2c_replay_cartpole", "her_bit_flipping", "ppo_dict_cartpole", "ppo_masked_cartpole"), 10),
    **dict.fromkeys(("a3c_cartpole", "apex_cartpole", "appo_cartpole", "appo_pendulum", "impala_cartpole"), 10),
    **dict.fromkeys(("appo_stateless_cartpole_lstm", "ppo_stateless_cartpole_lstm"), 10),
    **dict.fromkeys(("appo_misbehaving_cartpole", "dqn_minatar_breakout", "ppo_curriculum_goal_maze"), 10),
    **dict.fromkeys(("dqn_lunarlander", "dqn_stateless_cartpole_lstm", "sac_lunarlander_continuous"), 3),
}


def train(experiment: str, num_seeds: int, folder: Path) -> list[dict[str, Any]]:
    """Train the missing seeds, keep a policy, and return all runs."""
    from runner.config import build_experiment_config, compose_experiment

    sweep = folder / experiment
    seeds = f"seed=range({num_seeds})"
    subprocess.run(
        [*COMMAND, "-m", f"experiment={experiment}", seeds, f"hydra.sweep.dir={sweep}", "tracking=none"], check=True
    )
    composed = compose_experiment([f"experiment={experiment}"])
    stop = build_experiment_config(composed).stop
    metric = next(name for name in stop if name != STEPS)
    digest = hashlib.sha256(json.dumps(composed.values, sort_keys=True, default=str).encode()).hexdigest()[:12]
    facts = bc.machine_facts([])
    machine = f"{facts['cores']} cores, {facts['memory_gib']} GiB, {facts['cpu']}"
    trials = [json.loads((sweep / str(seed) / "result.json").read_text()) for seed in range(num_seeds)]
    runs = [
        {
            "experiment": experiment,
            "seed": seed,
            "num_env_steps": result[STEPS],
            "seconds": round(result["time_total_s"], 1),
            "episode_return_mean": result[metric],
            "target": stop[metric],
            "max_env_steps": int(stop[STEPS]),
            "configuration": digest,
            "machine": machine,
        }
        for seed, result in enumerate(trials)
    ]
    if experiment not in SEVERAL_AGENTS:
        _keep_policy(experiment, runs, sweep)
    return runs


def _keep_policy(experiment: str, runs: Sequence[Run], sweep: Path) -> None:
    """Export the policy of the seed with the median return, unless it is large."""
    by_return = sorted(range(len(runs)), key=lambda seed: runs[seed]["episode_return_mean"])
    policy = POLICIES / f"{experiment}.onnx"
    POLICIES.mkdir(exist_ok=True)
    middle = sweep / str(by_return[len(runs) // 2])
    subprocess.run([*COMMAND, "export", str(middle), "--format", "onnx", "--force", str(policy)], check=True)
    if policy.stat().st_size > LARGEST_POLICY:
        policy.unlink()


def main() -> None:
    """Train experiments and append their runs to `benchmarks/results/zoo.jsonl`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", nargs="*", choices=EXPERIMENTS, default=list(EXPERIMENTS))
    parser.add_argument("--folder", type=Path, default=Path("outputs/zoo"))
    arguments = parser.parse_args()
    for experiment in arguments.experiments:
        runs = train(experiment, EXPERIMENTS[experiment], arguments.folder)
        with ZOO.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(run) + "\n" for run in runs)


if __name__ == "__main__":
    main()
