"""`runner`'s PPO with the settings of `peer_cli.Settings`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from ours_cli import common_overrides, progress_of, training
from peer_cli import (
    AGENT_STEPS,
    COUNTS,
    GRADIENT_STEPS,
    HIDDEN,
    LOSS_ROWS,
    MAX_GRAD_NORM,
    SAMPLING_S,
    UPDATE_S,
    Progress,
    Settings,
    measure,
    parse_settings,
    report,
)

from runner import Trainer
from runner.episodes.columns import Rollout
from runner.learners.update_results import UpdateResult


@dataclass(frozen=True)
class OursSettings(Settings):
    experiment: str = "ppo_cartpole"
    num_agents: int = 2  # for multi-agent environments; more than two agents share one module

    @property
    def overridden(self) -> tuple[str, list[str]]:
        """Return the experiment for `num_agents` agents, and the overrides that it needs."""
        if self.num_agents == 2:
            return self.experiment, []
        return f"{self.experiment}_shared", [f"env.env_config.num_agents={self.num_agents}"]


def overrides(cfg: Settings) -> list[str]:
    return [
        *common_overrides(cfg),
        f"env_runners.num_env_runners={cfg.num_env_runners}",
        f"algorithm.lr={cfg.lr}",
        f"algorithm.lambda_={cfg.lambda_}",
        f"algorithm.clip_param={cfg.clip_param}",
        "algorithm.vf_clip_param=null",
        f"algorithm.vf_loss_coeff={cfg.vf_loss_coeff}",
        f"algorithm.entropy_coeff={cfg.entropy_coeff}",
        "algorithm.use_kl_loss=false",
        f"algorithm.grad_clip={MAX_GRAD_NORM}",
        f"algorithm.num_epochs={cfg.num_epochs}",
        f"algorithm.minibatch_size={cfg.minibatch_size}",
        f"algorithm.train_batch_size_per_learner={cfg.rows}",
        f"module.fcnet_hiddens=[{HIDDEN}]",
        "module.fcnet_activation=tanh",
        "module.vf_share_layers=true",
    ]


class Work:
    """Counts the work of a trainer's iterations; see `peer_cli.COUNTS`."""

    def __init__(self, trainer: Trainer, num_epochs: int) -> None:
        self._trainer = trainer
        self._num_epochs = num_epochs
        self._counts = dict.fromkeys(COUNTS, 0.0)
        update = trainer.learners.update

        def counted(rollout: Rollout, num_env_steps: int) -> UpdateResult:
            num_rows = sum(block.num_rows for block in rollout.blocks.values())
            self._counts[AGENT_STEPS] += num_rows
            self._counts[LOSS_ROWS] += num_rows * self._num_epochs
            return update(rollout, num_env_steps)

        trainer.learners.update = counted

    def iterate(self) -> Progress:
        result = self._trainer.train()
        self._counts[SAMPLING_S] += result["timers/env_runner_sampling"]
        self._counts[UPDATE_S] += result["timers/learner_update"]
        self._counts[GRADIENT_STEPS] += sum(
            steps for name, steps in result.items() if name.endswith("/num_minibatch_updates")
        )
        return progress_of(result, dict(self._counts))


def run(cfg: OursSettings) -> dict[str, Any]:
    start = time.perf_counter()
    experiment, for_agents = cfg.overridden
    with training(experiment, [*overrides(cfg), *for_agents]) as trainer:
        setup_s = time.perf_counter() - start
        work = Work(trainer, cfg.num_epochs)
        num_parameters = sum(len(weights) for weights in trainer.learners.get_weights().values())
        return measure("ours", cfg, work.iterate, setup_s) | {"num_parameters": num_parameters}


def main() -> None:
    cfg = parse_settings(__doc__, OursSettings, remote_runners=True)
    torch.set_num_threads(1)
    report(run(cfg))


if __name__ == "__main__":
    main()
