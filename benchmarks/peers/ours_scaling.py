"""Env steps per second of `runner` with many env runners whose steps sleep, for a plan with or without rounds."""

from __future__ import annotations

import argparse
import json
import time

import torch
from ours_cli import training_on_ray

PLANS = {
    "rounds": "ParallelRollouts",
    "free": "{ParallelRollouts: {mode: async, num_async: 2}}",
    "deterministic": "{ParallelRollouts: {mode: async, num_async: 2, deterministic: true}}",
}
UPDATES = {"appo_cartpole": "{MixInReplay: {replay_proportion: 0.5}}, TrainOneStep, UpdateTargetNetwork"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--experiment", default="impala_cartpole")
    parser.add_argument("--runners", type=int, required=True)
    parser.add_argument("--envs", type=int, default=1)
    parser.add_argument("--batch", type=int, help="env steps per update (default: 100 per env runner)")
    parser.add_argument("--plan", choices=PLANS, required=True)
    parser.add_argument("--seconds", type=float, default=0.005)
    parser.add_argument("--sigma", type=float, default=0.0)
    parser.add_argument("--env", choices=("SleepingCartPole", "SleepingCartPoles"), default="SleepingCartPole")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--measured-s", type=float, default=12.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    batch = args.batch or 100 * args.runners
    overrides = [
        f"seed={args.seed}",
        f"algorithm.plan=[{PLANS[args.plan]}, ConcatBatches, {UPDATES.get(args.experiment, 'TrainOneStep')}]",
        f"algorithm.train_batch_size_per_learner={batch}",
        f"algorithm.min_sample_timesteps_per_iteration={batch}",
        f"env_runners.num_env_runners={args.runners}",
        f"env_runners.num_envs_per_env_runner={args.envs}",
        "env_runners.num_cpus_per_env_runner=0.01",
        "env.env=null",
        f"env._target_=sleeping.{args.env}",
        f"+env.env_config.seconds={args.seconds}",
        *([f"+env.env_config.sigma={args.sigma}"] if args.sigma else []),
    ]
    with training_on_ray(args.experiment, overrides) as trainer:
        for _ in range(3):
            before = trainer.train()["num_env_steps_sampled_lifetime"]
        started = time.perf_counter()
        while time.perf_counter() < started + args.measured_s:
            steps = trainer.train()["num_env_steps_sampled_lifetime"]
        seconds = time.perf_counter() - started
    print(json.dumps({"steps_per_s": (steps - before) / seconds}), flush=True)


if __name__ == "__main__":
    main()
