"""`runner`'s IMPALA, APPO or PPO with the settings of `async_cli`."""

from __future__ import annotations

import tempfile

import torch
from async_cli import BATCH, NUM_ENVS, NUM_RUNNERS, AsyncSettings, measure, parse, report

from runner import Trainer
from runner.cluster import connected
from runner.config.compose import compose_experiment
from runner.config.validation import build_experiment_config


def overrides(settings: AsyncSettings, run_dir: str) -> list[str]:
    return [
        f"seed={settings.seed}",
        f"algorithm.train_batch_size_per_learner={BATCH}",
        "algorithm.min_sample_timesteps_per_iteration=4000",
        f"env_runners.num_env_runners={NUM_RUNNERS}",
        f"env_runners.num_envs_per_env_runner={NUM_ENVS}",
        "env_runners.num_cpus_per_env_runner=0.5",
        "evaluation.evaluation_interval=null",
        "tracking=none",
        f"hydra.run.dir={run_dir}",
    ]


def main() -> None:
    settings = parse()
    torch.set_num_threads(1)
    experiment = f"{settings.algorithm}_cartpole"
    with tempfile.TemporaryDirectory(prefix="bench-ours-") as run_dir:
        arguments = overrides(settings, run_dir)
        config = build_experiment_config(compose_experiment([f"+experiment={experiment}", *arguments]))
        with (
            connected(config.ray, {"CPU": 1}, "the benchmark", lambda note: None),
            Trainer.from_experiment(experiment, overrides=arguments) as trainer,
        ):
            lags: list[float] = []

            def iterate() -> int:
                result = trainer.train()
                lags.append(result.get("env_runners/weights_lag_mean") or 0.0)
                return int(result["num_env_steps_sampled_lifetime"] or 0)

            measured = measure(settings, iterate)
            report({**measured, "lag": sum(lags) / len(lags)})


if __name__ == "__main__":
    main()
