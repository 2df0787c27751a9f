"""Env steps per second that our RLlink server receives (or acts for), without a learner."""

from __future__ import annotations

import torch
from rllink_cli import measure, parse_settings

from runner.config.compose import compose_experiment
from runner.config.validation import build_experiment_config
from runner.experiment.env_runner_builder import TRAINING, build_env_runner
from runner.module_building import build_modules, make_module_specs, weights_of

STEPS_PER_SAMPLE = 4_000


def main() -> None:
    settings = parse_settings(__doc__)
    torch.set_num_threads(1)
    overrides = [
        "+experiment=ppo_external_cartpole",
        "env.port=0",
        "rllink=off_policy",
        "module.fcnet_hiddens=[64, 64]",
        f"algorithm.train_batch_size_per_learner={STEPS_PER_SAMPLE}",
    ]
    config = build_experiment_config(compose_experiment(overrides, None))
    runner = build_env_runner(config, make_module_specs(config), TRAINING, 0, 0)
    weights = weights_of(build_modules(config))

    def sample() -> int:
        return runner.sample(STEPS_PER_SAMPLE, True, weights, {}).rollout.num_env_steps

    runner.server.start()  # type: ignore[union-attr]
    try:
        measure(settings, runner.server.address, sample)  # type: ignore[union-attr]
    finally:
        runner.close()


if __name__ == "__main__":
    main()
