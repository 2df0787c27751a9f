"""`runner`'s IMPALA, APPO or PPO with the settings of `async_cli`."""

from __future__ import annotations

import torch
from async_cli import BATCH, NUM_ENVS, NUM_RUNNERS, AsyncSettings, measure, parse
from ours_cli import training_on_ray
from peer_cli import report


def overrides(settings: AsyncSettings) -> list[str]:
    return [
        f"seed={settings.seed}",
        f"algorithm.train_batch_size_per_learner={BATCH}",
        "algorithm.min_sample_timesteps_per_iteration=4000",
        f"env_runners.num_env_runners={NUM_RUNNERS}",
        f"env_runners.num_envs_per_env_runner={NUM_ENVS}",
        "env_runners.num_cpus_per_env_runner=0.5",
    ]


def main() -> None:
    settings = parse()
    torch.set_num_threads(1)
    with training_on_ray(f"{settings.algorithm}_cartpole", overrides(settings)) as trainer:
        lags: list[float] = []

        def iterate() -> int:
            result = trainer.train()
            lags.append(result.get("env_runners/weights_lag_mean") or 0.0)
            return int(result["num_env_steps_sampled_lifetime"] or 0)

        report({**measure(settings, iterate), "lag": sum(lags) / len(lags)})


if __name__ == "__main__":
    main()
