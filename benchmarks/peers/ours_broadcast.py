"""Milliseconds of the driver for sending weights of 10 MB to env runners, compared with the time of an update."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import ray
import torch
from ours_cli import training_on_ray

from runner.cluster.actors import RemoteActor

HIDDEN = 1550  # two layers of this width on CartPole: 2.4 million parameters
STEPS = 10  # env steps per request


class Clocked:
    """A function that measures the total time of its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *args: Any) -> Any:
        begun = time.perf_counter()
        try:
            return self.function(*args)
        finally:
            self.seconds += time.perf_counter() - begun

    def take_ms(self) -> float:
        """Return the milliseconds since the last call."""
        taken, self.seconds = 1000 * self.seconds, 0.0
        return taken


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runners", type=int, required=True)
    parser.add_argument("--updates", type=int, default=30)
    args = parser.parse_args()
    torch.set_num_threads(1)
    put = ray.put = Clocked(ray.put)
    submit = Clocked(RemoteActor.submit)
    RemoteActor.submit = lambda *arguments: submit(*arguments)  # type: ignore[method-assign]
    batch = STEPS * args.runners
    overrides = [
        f"algorithm.train_batch_size_per_learner={batch}",
        f"algorithm.min_sample_timesteps_per_iteration={batch}",
        f"module.fcnet_hiddens=[{HIDDEN}, {HIDDEN}]",
        f"env_runners.num_env_runners={args.runners}",
        "env_runners.num_envs_per_env_runner=1",
        "env_runners.num_cpus_per_env_runner=0.01",
        "env.env=null",
        "env._target_=sleeping.SleepingCartPole",
        "+env.env_config.seconds=0.1",
    ]
    with training_on_ray("impala_cartpole", overrides) as trainer:
        for _ in range(5):
            trainer.train()
        put.take_ms(), submit.take_ms()
        rows = []
        for _ in range(args.updates):
            result = trainer.train()
            updates = result["learners/default_policy/num_minibatch_updates"]
            rows.append(
                (
                    1000 * result["timers/learner_update"] / updates,
                    put.take_ms() / updates,
                    submit.take_ms() / updates,
                )
            )
        num_bytes = trainer.learners.get_weights()["default_policy"].nbytes
    update_ms, put_ms, submit_ms = (statistics.median(column) for column in zip(*rows, strict=True))
    print(json.dumps({"mb": num_bytes / 1e6, "update_ms": update_ms, "put_ms": put_ms, "submit_ms": submit_ms}))


if __name__ == "__main__":
    main()
