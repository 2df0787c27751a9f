"""`runner`'s behaviour cloning and recording with the settings of `offline_cli.Settings`."""

from __future__ import annotations

import time

from offline_cli import BATCH, HIDDENS, LR, Settings, measure_recording, measure_updates, parse_settings

from runner.config.compose import compose_experiment
from runner.config.validation import build_experiment_config
from runner.experiment.evaluation_run import EvaluationRun
from runner.experiment.trainer import Trainer

UPDATES_AN_ITERATION = 50


def train(settings: Settings) -> None:
    is_streaming = settings.mode == "streaming"
    start = time.perf_counter()
    overrides = [
        f"offline.input_={settings.data}",
        f"offline.materialize_mapped_data={str(not is_streaming).lower()}",
        f"offline.dataset_num_iters_per_learner={UPDATES_AN_ITERATION}",
        f"algorithm.train_batch_size_per_learner={BATCH}",
        f"algorithm.lr={LR}",
        f"module.fcnet_hiddens={HIDDENS}",
        "evaluation.evaluation_interval=1000000",
    ]
    with Trainer.from_experiment("bc_cartpole", overrides) as trainer:

        def iterate() -> int:
            trainer.train()
            return UPDATES_AN_ITERATION

        measure_updates(settings, start, iterate)


def record(settings: Settings) -> None:
    overrides = [
        f"env.env={settings.env}",
        f"offline.output={settings.output}",
        f"evaluation.num_envs_per_env_runner={settings.num_envs}",
        f"module.fcnet_hiddens={HIDDENS}",
        "evaluation.explore=true",
    ]
    experiment = "ppo_cartpole" if settings.env.startswith("CartPole") else "ppo_pendulum"
    config = build_experiment_config(compose_experiment([f"+experiment={experiment}", *overrides]))
    with EvaluationRun(config) as evaluation:
        evaluation.evaluate(settings.num_envs)  # warm-up: creates the env runner and warms up torch

        def one_recording() -> int:
            result = evaluation.evaluate(settings.episodes)
            evaluation.finish_recording()
            return int(result["evaluation/env_runners/num_env_steps_sampled"])

        measure_recording(one_recording)


if __name__ == "__main__":
    settings = parse_settings(__doc__)
    record(settings) if settings.output else train(settings)
