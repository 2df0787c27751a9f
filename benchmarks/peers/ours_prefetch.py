"""Updates per second of a remote learner on images, and its idle share, with or without `learners.prefetch`."""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
from ours_cli import training_on_ray


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prefetch", choices=("true", "false"), required=True)
    parser.add_argument(
        "--waiting-ms", type=float, default=0.0, help="milliseconds of each update in which the learner only waits"
    )
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--learners", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--measured-s", type=float, default=12.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    waiting = f"{{_target_: pictures.Waiting, seconds: {args.waiting_ms / 1000}}}"
    overrides = [
        f"seed={args.seed}",
        f"learners.prefetch={args.prefetch}",
        f"learners.num_learners={args.learners}",
        "learners.num_cpus_per_learner=0.01",
        f"algorithm.train_batch_size_per_learner={args.batch // args.learners}",
        f"algorithm.min_sample_timesteps_per_iteration={args.batch}",
        "module.conv_filters=[[4, 8, 8]]",
        "module.fcnet_hiddens=[4]",
        "env_runners.num_env_runners=2",
        "env_runners.num_envs_per_env_runner=16",
        "env_runners.num_cpus_per_env_runner=0.01",
        "env.env=null",
        "env._target_=pictures.Pictures",
        f"connectors.learner=[{{insert_before: AgentToModuleMapping, connector: {waiting}}}]",
    ]
    with training_on_ray("impala_cartpole", overrides) as trainer:
        for _ in range(5):
            trainer.train()
        started, num_updates, update_s, lags = time.perf_counter(), 0, 0.0, []
        while time.perf_counter() < started + args.measured_s:
            result = trainer.train()
            num_updates += 1
            update_s += result["timers/learner_update"]
            lags.append(result["env_runners/weights_lag_mean"])
        seconds = time.perf_counter() - started
    measured = {"updates_per_s": num_updates / seconds, "update_ms": 1000 * update_s / num_updates}
    print(json.dumps({**measured, "idle": 1 - update_s / seconds, "lag": statistics.mean(lags)}))


if __name__ == "__main__":
    main()
